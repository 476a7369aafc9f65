"""What is known of a graph, for Netron to put upon the model that is open in it."""

import json
import math
from collections.abc import Iterator
from typing import Any

from ...graph._facts import Facts, worst
from ...graph._graph import Graph

Entry = dict[str, Any]


def attachment(graph: Graph) -> str:
    """The JSON text of an attachment, as Netron 9 reads it: opened after a model, it adds to what a click shows.

    An entry has a `kind` (`node`, `value` or `model`), a `target`, which is its name, a `name` and a `value`: text in
    `metadata`, a number in `metrics`. Netron knows a node by the name that it has in the file, up to the first line's
    end; what a node without a name makes has its entries all the same.
    """
    facts = Facts(graph)
    metadata = [_entry("model", "", f"filch.remark.{i}", remark) for i, remark in enumerate(graph.remarks)]
    metrics: list[Entry] = []
    named = _named(graph)
    for node in graph.nodes:
        if node.name in named:
            metadata += _told("node", node.name, facts.of_node(node))
            metrics += _measured(graph, "node", node.name, node.outputs)
    for name in graph.findings:
        metadata += _told("value", name, facts.of_value(name))
        metrics += _measured(graph, "value", name, (name,))
    content = {"signature": "netron:attachment", "metadata": metadata, "metrics": metrics}
    return json.dumps(content, indent=1, allow_nan=False)


def _named(graph: Graph) -> set[str]:
    """The names that nodes have in the file itself."""
    nodes: list[Any] = [*graph.onnx.graph] if graph.onnx is not None else [*graph.nodes]
    return {node.name for node in nodes if node.name}


def _told(kind: str, target: str, facts: dict[str, str]) -> Iterator[Entry]:
    return (_entry(kind, target, f"filch.{name.replace(' ', '_')}", text) for name, text in facts.items())


def _measured(graph: Graph, kind: str, target: str, values: tuple[str, ...]) -> Iterator[Entry]:
    found = worst(finding for name in values for finding in graph.findings.get(name, ()))
    if found is not None:
        numbers = {"error": found.error, **found.measures, "seconds": found.seconds}
        for name, number in numbers.items():
            if number is not None:  # JSON has neither NaN nor infinity
                yield _entry(kind, target, f"filch.{name}", number if math.isfinite(number) else repr(number))


def _entry(kind: str, target: str, name: str, value: str | float) -> Entry:
    return {"kind": kind, "target": target.partition("\n")[0], "name": name, "value": value}
