"""Join the reports of several graphs: a model's forward and backward pass, or the graphs of a graph break."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from filch.export import Graph, Node, Value
from filch.export.backends import Stage

from ._report import Report
from ._rows import STAGES, Row

T = TypeVar("T", Graph, Node, Value, Row)
# Fields that hold names of nodes and values.
_FIELDS = {
    Graph: ("inputs", "outputs", "constants"),
    Node: ("name", "inputs", "outputs", "captured", "origins", "gradient_of"),
    Value: ("name",),
    Row: ("node", "value", "origins", "behind"),
}


def joined(reports: Sequence[Report]) -> tuple[list[Row], dict[Stage, Graph]]:
    """Return the rows and graphs of some reports, in order; the program's name is appended to a repeated name."""
    rows: list[Row] = []
    graphs = defaultdict[Stage, list[Graph]](list)
    taken: set[str] = set()
    for report in reports:
        names = {name for row in report.rows for name in (row.node, row.value)}
        for graph in report.graphs.values():
            names.update(graph.inputs, graph.constants, graph.producer, graph.node_indices)
        new = {name: f"{name} ({report.program})" for name in names & taken}
        taken |= names
        rows += [_renamed(row, new) for row in report.rows]
        for stage, graph in report.graphs.items():
            graphs[stage].append(_renamed(graph, new))
    return rows, {stage: _joined_graph(graphs[stage]) for stage in STAGES if stage in graphs}


def _joined_graph(graphs: Sequence[Graph]) -> Graph:
    """Return a graph with the nodes of several, one after the other; what one of them computes is no input."""
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


def _renamed(item: T, new: Mapping[str, str]) -> T:
    """Return a copy with other names of nodes and values, also in the nodes and values of a graph."""
    if not new:
        return item
    changes: dict[str, Any] = {}
    for field in _FIELDS[type(item)]:
        current = getattr(item, field)
        is_tuple = isinstance(current, tuple)
        changes[field] = tuple(new.get(name, name) for name in current) if is_tuple else new.get(current, current)
    if isinstance(item, Graph):
        changes["nodes"] = tuple(_renamed(node, new) for node in item.nodes)
        changes["values"] = {new.get(name, name): _renamed(value, new) for name, value in item.values.items()}
    return replace(item, **changes)
