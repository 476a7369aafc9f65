"""Write the facts of a graph as an attachment, which Netron shows with the open model."""

import json
import math
from collections.abc import Iterator
from typing import Any

from ...graph._facts import node_facts, value_facts
from ...graph._graph import Graph

Entry = dict[str, Any]


def attachment(graph: Graph) -> str:
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
    return (_entry(kind, target, f"filch.{name.replace(' ', '_')}", text) for name, text in facts.items())


def _metrics(graph: Graph, kind: str, target: str, values: tuple[str, ...]) -> Iterator[Entry]:
    finding = graph.worst_finding(*values)
    if finding is not None:
        numbers = {"error": finding.error, **finding.measures, "seconds": finding.seconds}
        for name, number in numbers.items():
            if number is not None:  # JSON has neither NaN nor infinity
                yield _entry(kind, target, f"filch.{name}", number if math.isfinite(number) else repr(number))


def _entry(kind: str, target: str, name: str, value: str | float) -> Entry:
    return {"kind": kind, "target": target.partition("\n")[0], "name": name, "value": value}
