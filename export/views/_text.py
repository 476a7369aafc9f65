"""Graphs as text, a line a node, in the manner of hidet's flow graphs."""

from collections.abc import Sequence
from typing import Any

from .._graph import Graph, Node, Value
from ._view import Drawing


class TextView:
    """See `View`."""

    suffixes: tuple[str, ...] = (".txt",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return Drawing.of(format_graph(graph) + "\n", suffix)


def format_graph(graph: Graph, *, modules: bool = False, sources: bool = False, title: str = "Graph") -> str:
    """A graph as text; see `Graph.text`."""
    inputs = ", ".join(_typed(graph, name) for name in graph.inputs)
    lines = [f"{title}({inputs}){{"]
    used = {name for node in graph.nodes for name in node.reads} | set(graph.outputs)
    lines += [f"  {name} = Constant({graph.values[name]})" for name in graph.constants if name in used]
    for node in graph.nodes:
        notes = [note for note, wanted in ((node.module, modules), (node.source, sources)) if wanted and note]
        lines.append(f"  {_line(graph, node)}{_comment(notes)}")
    text = "\n".join([*lines, f"  return {', '.join(graph.outputs)}", "}"])
    inner = (
        format_graph(function, modules=modules, sources=sources, title=f"Function {name}")
        for name, function in graph.functions.items()
    )
    return "\n\n".join([text, *inner])


def _comment(notes: Sequence[str]) -> str:
    return f"  # {', '.join(notes)}" if notes else ""


def _typed(graph: Graph, name: str) -> str:
    return f"{name}: {graph.values.get(name, Value(name))}"


def _line(graph: Graph, node: Node) -> str:
    made = ", ".join(_typed(graph, name) for name in node.outputs if name)
    attributes = [f"{name}={_literal(value)}" for name, value in node.attributes.items()]
    return f"{made} = {node.op}({', '.join([*(name or '_' for name in node.inputs), *attributes])})"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) and not value.startswith("<") else str(value).strip("<>")
