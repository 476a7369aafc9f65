"""Join the reports of several graphs: a model's forward and backward pass, or the graphs of a graph break."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from filch.export import Graph, Node
from filch.export.backends import Stage

from ._report import Report
from ._rows import STAGES, Row


def joined(reports: Sequence[Report]) -> tuple[list[Row], dict[Stage, Graph]]:
    """Return the rows and graphs of some reports, in order; the program's name is appended to a repeated name."""
    rows: list[Row] = []
    parts: dict[Stage, list[Graph]] = {}
    taken: set[str] = set()
    for report in reports:
        names = {name for graph in report.graphs.values() for name in _names(graph)}
        names |= {name for row in report.rows for name in (row.node, row.value)}
        new = {name: f"{name} ({report.program})" for name in names & taken}
        taken |= names
        rows += [_renamed_row(row, new) for row in report.rows]
        for stage, graph in report.graphs.items():
            parts.setdefault(stage, []).append(_renamed(graph, new))
    return rows, {stage: _joined_graph(parts[stage]) for stage in STAGES if stage in parts}


def _names(graph: Graph) -> Iterable[str]:
    return (*graph.inputs, *graph.constants, *graph.producer, *(node.name for node in graph.nodes))


def _joined_graph(graphs: Sequence[Graph]) -> Graph:
    computed = {name for graph in graphs for name in graph.producer}
    inputs = dict.fromkeys(name for graph in graphs for name in graph.inputs)
    return Graph(
        name="joint",
        inputs=tuple(name for name in inputs if name not in computed),
        outputs=tuple(dict.fromkeys(name for graph in graphs for name in graph.outputs)),
        constants=tuple(dict.fromkeys(name for graph in graphs for name in graph.constants)),
        nodes=tuple(node for graph in graphs for node in graph.nodes),
        values={name: value for graph in graphs for name, value in graph.values.items()},
        functions={name: function for graph in graphs for name, function in graph.functions.items()},
    )


def _renamed(graph: Graph, new: Mapping[str, str]) -> Graph:
    if not new:
        return graph
    values = {name: replace(value, name=new.get(name, name)) for name, value in graph.values.items()}
    return replace(
        graph,
        inputs=_in(graph.inputs, new),
        outputs=_in(graph.outputs, new),
        constants=_in(graph.constants, new),
        nodes=tuple(_renamed_node(node, new) for node in graph.nodes),
        values={value.name: value for value in values.values()},
    )


def _renamed_node(node: Node, new: Mapping[str, str]) -> Node:
    return replace(
        node,
        name=new.get(node.name, node.name),
        inputs=_in(node.inputs, new),
        outputs=_in(node.outputs, new),
        captured=_in(node.captured, new),
        origins=_in(node.origins, new),
        gradient_of=None if node.gradient_of is None else new.get(node.gradient_of, node.gradient_of),
    )


def _renamed_row(row: Row, new: Mapping[str, str]) -> Row:
    node, value = new.get(row.node, row.node), new.get(row.value, row.value)
    return replace(row, node=node, value=value, origins=_in(row.origins, new), behind=_in(row.behind, new))


def _in(names: Iterable[str], new: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(new.get(name, name) for name in names)
