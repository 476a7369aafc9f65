"""Write the facts of a graph as JSON for Netron: as an attachment to an open model, or with the graph as a message."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...graph._facts import node_facts, value_facts
from ...graph._graph import Graph
from ...graph._nodes import Node, Value
from .._categories import category

Entry = dict[str, Any]


def serialize_attachment(graph: Graph) -> str:
    """Return the JSON of an attachment for Netron 9: opened after a model, it adds entries to nodes and values.

    An entry has a `kind` (`node`, `value` or `model`), a `target` (the name of the object), a `name` and a `value`:
    text in `metadata`, a number in `metrics`. Netron finds a node by the first line of its name in the file. Nodes
    without a name have no entries, but their values do.
    """
    metadata = [_entry("model", "", f"filch.remark.{i}", remark) for i, remark in enumerate(graph.remarks)]
    metrics: list[Entry] = []
    file_nodes: list[Any] = [*graph.onnx.graph] if graph.onnx is not None else [*graph.nodes]
    names = {node.name for node in file_nodes if node.name}
    for node in graph.nodes:
        if node.name in names:
            metadata += _metadata("node", node.name, node_facts(graph, node))
            metrics += _metrics(graph, "node", node.name, node.outputs)
    for name in graph.findings:
        metadata += _metadata("value", name, value_facts(graph, name))
        metrics += _metrics(graph, "value", name, (name,))
    content = {"signature": "netron:attachment", "metadata": metadata, "metrics": metrics}
    return json.dumps(content, indent=1, allow_nan=False)


def _metadata(kind: str, target: str, facts: dict[str, str]) -> Iterator[Entry]:
    return (_entry(kind, target, name, text) for name, text in add_prefix(facts).items())


def _metrics(graph: Graph, kind: str, target: str, values: tuple[str, ...]) -> Iterator[Entry]:
    """Yield the numbers of the worst finding of some values, as entries of `metrics`; none without a finding."""
    finding = graph.worst_finding(*values)
    if finding is not None:
        numbers = {"error": finding.error, **finding.measures, "seconds": finding.seconds}
        for name, number in numbers.items():
            if number is not None:
                # JSON has neither NaN nor infinity.
                yield _entry(kind, target, f"filch.{name}", number if math.isfinite(number) else repr(number))


def _entry(kind: str, target: str, name: str, value: str | float) -> Entry:
    return {"kind": kind, "target": target.partition("\n")[0], "name": name, "value": value}


def serialize_message(graph: Graph) -> str:
    """Return the JSON of a message, which Netron 6.0 and later reads from a file `*.netron`.

    The signature is the first key, because Netron looks for it in the first 64 bytes. The facts of a node are among its
    attributes, because a message has no metadata.
    """
    content = {
        "signature": "netron:filch",
        "format": "Filch",
        "producer": "Filch",
        "description": graph.name,
        "metadata": [{"name": f"remark {i}", "value": remark} for i, remark in enumerate(graph.remarks)],
        "graphs": [_graph(graph)],
    }
    return json.dumps(content, indent=1)


def _graph(graph: Graph) -> dict[str, Any]:
    """Return a graph in Netron's JSON, in which a node refers to a value by its index in `values`."""
    read = (name for node in graph.nodes for name in (*node.reads, *node.outputs) if name)
    names = dict.fromkeys([*graph.inputs, *graph.constants, *read, *graph.outputs])
    indices = {name: index for index, name in enumerate(names)}
    constants = {*graph.constants}

    def arguments(names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the arguments of a node; each is named by its position."""
        return [{"name": str(index), "value": [indices[name]]} for index, name in enumerate(names) if name]

    def node_record(node: Node) -> dict[str, Any]:
        return {
            "name": node.name,
            "type": {"name": node.op, "category": category(node.op)},
            "inputs": arguments(node.reads),
            "outputs": arguments(node.outputs),
            "attributes": [
                {"name": name, "type": "string", "value": str(value)}
                for name, value in {**node.attributes, **add_prefix(node_facts(graph, node))}.items()
            ],
        }

    return {
        "values": [_value(name, graph.values.get(name), constant=name in constants) for name in indices],
        "inputs": [{"name": name, "value": [indices[name]]} for name in graph.inputs],
        "outputs": [{"name": name, "value": [indices[name]]} for name in graph.outputs],
        "nodes": [node_record(node) for node in graph.nodes],
    }


def _value(name: str, value: Value | None, *, constant: bool) -> dict[str, Any]:
    shape = ("?",) if value is None or value.shape is None else value.shape
    dims = ["?" if dim is None else str(dim) for dim in shape]
    kind = {"dataType": (value and value.dtype) or "?", "shape": {"dimensions": dims}}
    return {"name": name, "type": kind} | ({"initializer": {"type": kind}} if constant else {})


def add_prefix(facts: Mapping[str, str]) -> dict[str, str]:
    """Return facts by their names in files for Netron, such as `filch.gradient_of`."""
    return {f"filch.{name.replace(' ', '_')}": text for name, text in facts.items()}
