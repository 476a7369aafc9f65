"""Write graphs as hidet's JSON, for hidet's viewer, which is based on Netron 5."""

import json
from collections.abc import Mapping
from typing import Any, TextIO

from filch.steal.text._visible import visible

from ..graph._facts import node_facts
from ..graph._folding import fold
from ..graph._graph import Graph
from ..graph._nodes import Node, Value
from ._categories import category
from ._view import Drawing

# The viewer inserts the names of values into its page without escaping: these characters look the same and are no HTML.
_ESCAPED = str.maketrans({"<": "\u2039", ">": "\u203a", "&": "\uff06"})
# hidet's viewer lacks Netron's newer categories and draws them without a color.
_OLDER = {"Quantization": "Transform", "Attention": "Layer", "Control": "Custom"}


class HidetView:
    """See `View`."""

    suffixes: tuple[str, ...] = (".json",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        source = {"description": "\n".join(map(visible, graph.remarks)), "source": "Filch", "format": "netron"}
        empty = dict.fromkeys(("author", "company", "license", "domain"), "")
        functions = [_GraphWriter(function, name).graph() for name, function in graph.functions.items()]
        model = {"graphs": [_GraphWriter(graph, graph.name).graph(), *functions], **empty, **source}
        return Drawing.of(json.dumps(model, indent=2), suffix)


class ViewerFiles:
    """Writes files for hidet's viewer, with the interface of `hidet.utils.netron`."""

    def dump(self, graph: Graph, fp: TextIO) -> None:
        """Write a graph to a file opened in text mode, like hidet's `netron.dump`."""
        fp.write(HidetView().draw(graph, ".json").content.decode())


netron = ViewerFiles()


class _GraphWriter:
    """Writes one graph."""

    def __init__(self, graph: Graph, name: str) -> None:
        self._graph = graph
        self._name = name
        self._names = _safe_names(graph)
        self._constants = {*graph.constants}

    def graph(self) -> dict[str, Any]:
        graph = self._graph
        groups = self._groups()
        return {
            "name": visible(self._name),
            "groups": any(groups),
            "inputs": [self._parameter(name, name) for name in graph.inputs],
            "outputs": [self._parameter(f"output:{index}", name) for index, name in enumerate(graph.outputs)],
            "nodes": [
                self._node(index, node, group)
                for index, (node, group) in enumerate(zip(graph.nodes, groups, strict=True))
            ],
        }

    def _groups(self) -> list[str]:
        """Return the path of each node's box; paths begin with `/`, because the viewer uses `0`, `1`, … for nodes."""
        folding = fold(self._graph)
        paths: list[str] = []
        for group in folding.groups:
            around = "" if group.parent is None else paths[group.parent]
            paths.append(f"{around}/{visible(str(group)).replace('/', '∕') or '_'}")  # noqa: RUF001  no separator
        return ["" if group is None else paths[group] for group in folding.node_groups]

    def _node(self, index: int, node: Node, group: str) -> dict[str, Any]:
        kind = category(node.op)
        facts = node_facts(self._graph, node)
        return {
            "name": visible(f"{index}_{node.name}"),
            "type": {"name": visible(node.op), "category": _OLDER.get(kind, kind).lower() or None},
            "inputs": [self._parameter(str(i), name) for i, name in enumerate(node.reads)],
            "outputs": [self._parameter(str(i), name) for i, name in enumerate(filter(None, node.outputs))],
            "attributes": [_attribute(name, value) for name, value in node.attributes.items()],
            "description": [visible(f"{name}: {text}") for name, text in facts.items()],
            "location": visible(node.source or ""),
            "group": group,
        }

    def _parameter(self, title: str, name: str) -> dict[str, Any]:
        """Return an input or output of the graph or a node: one value. A constant's numbers are not written."""
        argument: dict[str, Any] = {"name": self._names[name], "type": _type(self._graph.values.get(name))}
        argument |= {"initializer": {"kind": "Initializer", "value": "<>"}} if name in self._constants else {}
        return {"name": visible(title), "arguments": [argument], "visible": True}


def _type(value: Value | None) -> dict[str, Any]:  # None: nothing is known of it
    dtype = visible((value and value.dtype) or "?")
    shape = ("?",) if value is None or value.shape is None else value.shape
    dims = ["?" if dim is None else visible(str(dim)) for dim in shape]
    return {"string": f"{dtype}{dims}", "shape": {"dimensions": dims}, "dataType": dtype}


def _attribute(name: str, value: Any) -> dict[str, Any]:
    kind = f"Sequence[{type(value[0]).__name__}]" if isinstance(value, list | tuple) and value else type(value).__name__
    return {"name": visible(name), "type": kind, "value": visible(str(value)), "visible": True, "description": ""}


def _safe_names(graph: Graph) -> Mapping[str, str]:
    """Map the name of each value to a unique one without HTML; edges are drawn between equal names."""
    safe_names: dict[str, str] = {}
    taken: set[str] = set()
    names = [name for node in graph.nodes for name in (*node.reads, *node.outputs)]
    for name in dict.fromkeys([*graph.inputs, *graph.constants, *names, *graph.outputs]):
        safe = visible(name).translate(_ESCAPED)
        while safe in taken:
            safe += "_"
        taken.add(safe)
        safe_names[name] = safe
    return safe_names
