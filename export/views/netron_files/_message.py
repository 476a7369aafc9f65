"""Write any graph as a message, which Netron opens instead of a model."""

import json
from collections.abc import Sequence
from typing import Any

from ...graph._facts import node_facts
from ...graph._graph import Graph
from ...graph._nodes import Node, Value
from .._categories import category


def message(graph: Graph) -> str:
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
    read = (name for node in graph.nodes for name in (*node.reads, *node.outputs) if name)
    places = {name: i for i, name in enumerate(dict.fromkeys([*graph.inputs, *graph.constants, *read, *graph.outputs]))}
    constants = {*graph.constants}

    def arguments(names: Sequence[str]) -> list[dict[str, Any]]:
        return [{"name": str(i), "value": [places[name]]} for i, name in enumerate(names) if name]

    def node_record(node: Node) -> dict[str, Any]:
        facts_of_node = {f"filch.{name.replace(' ', '_')}": text for name, text in node_facts(graph, node).items()}
        return {
            "name": node.name,
            "type": {"name": node.op, "category": category(node.op)},
            "inputs": arguments(node.reads),
            "outputs": arguments(node.outputs),
            "attributes": [
                {"name": name, "type": "string", "value": str(value)}
                for name, value in {**node.attributes, **facts_of_node}.items()
            ],
        }

    return {
        "values": [_value(name, graph.values.get(name), constant=name in constants) for name in places],
        "inputs": [{"name": name, "value": [places[name]]} for name in graph.inputs],
        "outputs": [{"name": name, "value": [places[name]]} for name in graph.outputs],
        "nodes": [node_record(node) for node in graph.nodes],
    }


def _value(name: str, value: Value | None, *, constant: bool) -> dict[str, Any]:
    shape = ("?",) if value is None or value.shape is None else value.shape
    dims = ["?" if dim is None else str(dim) for dim in shape]
    kind = {"dataType": (value and value.dtype) or "?", "shape": {"dimensions": dims}}
    return {"name": name, "type": kind} | ({"initializer": {"type": kind}} if constant else {})
