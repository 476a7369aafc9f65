"""From the names of the exported program's nodes to the values of the ONNX graph made of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from ..evaluation._eager import weight_names
from ..graph._graph import Graph
from ..graph._module_calls import Port, Resolution

# These give the numbers that they take, whatever their arguments, as long as the dtype is the same.
_IDENTITIES = frozenset(
    {
        "to",
        "_to_copy",
        "contiguous",
        "clone",
        "detach",
        "detach_",
        "alias",
        "dropout",
        "dropout_",
        "lift_fresh_copy",
        "type_as",
    }
)
# These do where the decomposition drops them though their result is used: it drops them when they change nothing.
_IDLE_WHEN_DROPPED = frozenset(
    {
        "expand",
        "expand_as",
        "view",
        "view_as",
        "reshape",
        "slice",
        "squeeze",
        "flatten",
        "repeat",
        "pad",
        "constant_pad_nd",
    }
)


class Names:
    """Follows names through the decomposition of one exported program.

    Equal names are no proof: decomposing renumbers (`view_3` may be another node afterwards). What is sure is each
    node's own record of the node that it was made from; the last node of a decomposition carries the value.

    Args:
        exported: the program as torch.export made it; its nodes' names are those of the module call signatures.
        decomposed: the program of which the ONNX graph is the translation; its nodes' names are the ONNX values'.
        graph: the ONNX graph.
    """

    def __init__(self, exported: ExportedProgram, decomposed: ExportedProgram, graph: Graph) -> None:
        self._known = graph.known
        self._held = dict(weight_names(exported))
        self._live = _live(exported.graph_module)
        self._nodes: dict[str, fx.Node] = {}
        self._stands_for: dict[fx.Node, fx.Node] = {}
        self._becomes: dict[fx.Node, str] = {}
        self._stale = _written_through_views(exported.graph_module)
        self._read(exported.graph_module, _made_of(exported, decomposed))

    def port(self, path: str, name: str) -> Port | None:
        """What became of the exported program's value `name`; None if its trace is lost.

        Args:
            path: where it stands in a module call.
            name: of its node.
        """
        resolution: Resolution = "exact"
        node = self._nodes.get(name)
        while node is not None and node not in self._stale:
            value = self._value(node)
            if value is not None:
                return Port(path, value, resolution)
            node = self._source(node)
            resolution = "alias"
        return None if name in self._live else Port(path, None, "dead", "nothing uses it")

    def _value(self, node: fx.Node) -> str | None:
        made = self._becomes.get(node, node.name if node.op == "placeholder" else None)
        if made in self._known:
            return made
        held = self._held.get(node.name)
        return held if held in self._known else None

    def _source(self, node: fx.Node) -> fx.Node | None:
        """The node whose numbers a dropped node gives."""
        if (inner := self._stands_for.get(node)) is not None:
            return inner
        first = node.args[0] if node.op == "call_function" and node.args else None
        if not isinstance(first, fx.Node) or not _same_type(node, first):
            return None
        operator = _operator(node)
        idle = operator in _IDLE_WHEN_DROPPED and node.name in self._live
        return first if operator in _IDENTITIES or idle else None

    def _read(self, module: fx.GraphModule, made_of: Mapping[str, list[fx.Node]]) -> None:
        """Take in all nodes of `module`, and those of the regions in it (`with torch.no_grad():`, autocast)."""
        regions: dict[fx.Node, list[Any]] = {}
        for node in module.graph.nodes:
            self._nodes[node.name] = node
            if (region := _region(module, node)) is not None:
                regions[node] = self._read_region(region, made_of.get(node.name, []))
            elif _operator(node) == "getitem":
                self._read_item(node, regions, made_of)
            elif made := made_of.get(node.name):
                self._becomes[node] = made[-1].name

    def _read_item(
        self, node: fx.Node, regions: Mapping[fx.Node, list[Any]], made_of: Mapping[str, list[fx.Node]]
    ) -> None:
        source: Any
        index: Any
        source, index = node.args
        if source in regions:
            self._stands_for[node] = regions[source][index]
            return
        made = [*made_of.get(node.name, ()), *made_of.get(source.name, ())]
        items = [
            item for item in made if _operator(item) == "getitem" and item.args[1] == index and _leaves(item, made)
        ]
        if items:
            self._becomes[node] = items[0].name

    def _read_region(self, region: tuple[fx.GraphModule, list[Any]], made: list[fx.Node]) -> list[Any]:
        """Take in a region's nodes; returns what its results are.

        Inlining records only that a node came from the region. Within it, the order is kept: where an operator occurs
        as often before and after, its occurrences correspond.
        """
        body, operands = region
        self._read(body, {})
        nodes = list(body.graph.nodes)
        parameters = [node for node in nodes if node.op == "placeholder"]
        self._stands_for |= {p: a for p, a in zip(parameters, operands, strict=False) if isinstance(a, fx.Node)}
        for target in {node.target for node in nodes if node.op == "call_function"}:
            before = [node for node in nodes if node.target == target]
            after = [node for node in made if node.target == target]
            if len(before) == len(after):
                self._becomes |= {node: successor.name for node, successor in zip(before, after, strict=True)}
        results = nodes[-1].args[0]
        return list(results) if isinstance(results, tuple | list) else [results]


def _leaves(item: fx.Node, made: Sequence[fx.Node]) -> bool:
    """Whether what an item is taken from is the result of the decomposition `made`, not computed with inside of it."""
    inside = set(made)
    (source,) = item.all_input_nodes
    items = [user for user in source.users if user in inside]
    return all(_operator(other) == "getitem" and inside.isdisjoint(other.users) for other in items)


# The operators whose results share memory with what they take, though their schema does not say so of lists.
_SPLITTING = frozenset({"split", "split_with_sizes", "chunk", "tensor_split", "unbind", "getitem"})


def _written_through_views(module: fx.GraphModule) -> set[fx.Node]:
    """The nodes whose memory is written to under another name (`y = x[0]; y.add_(1)` changes x).

    What is written to directly goes by the name of the writing operation from then on. The other names of the same
    memory stay, and stand for the numbers before as well as for those after.
    """
    views: dict[fx.Node, list[fx.Node]] = {}
    root: dict[fx.Node, fx.Node] = {}
    stale: set[fx.Node] = set()
    for node in module.graph.nodes:
        written = _written(node)
        first = node.args[0] if node.op == "call_function" and node.args else None
        shares = isinstance(first, fx.Node) and (first in written or _is_view(node))
        root[node] = root[first] if shares and isinstance(first, fx.Node) else node
        for target in written:
            stale |= {other for other in views[root[target]] if other is not target}
        views.setdefault(root[node], []).append(node)
    return stale


def _written(node: fx.Node) -> list[fx.Node]:
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None:
        return []
    flags = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
    return [
        argument for argument, flag in zip(node.args, flags, strict=False) if flag and isinstance(argument, fx.Node)
    ]


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    results = schema.returns if schema is not None else ()
    return _operator(node) in _SPLITTING or any(item.alias_info is not None for item in results)


def _made_of(exported: ExportedProgram, decomposed: ExportedProgram) -> dict[str, list[fx.Node]]:
    """The nodes that decomposing made of each node, by its name."""
    graph_id = id(exported.graph)
    found: dict[str, list[fx.Node]] = {}
    for node in decomposed.graph.nodes:
        pending = list(node.meta.get("from_node") or ())
        names = set()
        while pending:
            source = pending.pop()
            if source.graph_id == graph_id:
                names.add(source.name)
            pending += source.from_node
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def _same_type(node: fx.Node, other: fx.Node) -> bool:
    a, b = node.meta.get("val"), other.meta.get("val")
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape


def _operator(node: fx.Node) -> str:
    """An operator's name without its overload: `to` for `aten.to.dtype`."""
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def _region(module: fx.GraphModule, node: fx.Node) -> tuple[fx.GraphModule, list[Any]] | None:
    """The body and the operands of a node that only runs its body in another mode."""
    if not _operator(node).startswith("wrap_with_"):
        return None
    for index, argument in enumerate(node.args):
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
            body = getattr(module, str(argument.target), None)
            if isinstance(body, fx.GraphModule):
                return body, list(node.args[index + 1 :])
    return None


def _live(module: fx.GraphModule) -> frozenset[str]:
    """The names of the nodes that the module's output depends on."""
    pending = [node for node in module.graph.nodes if node.op == "output" or node.is_impure()]
    seen: set[fx.Node] = set()
    names: set[str] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        names.add(node.name)
        pending += node.all_input_nodes
        region = _region(module, node)
        if region is not None:
            names |= _live(region[0])
    return frozenset(names)
