"""What a comparison found, as node data for Google's Model Explorer."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass

from .._errors import ViewError
from ..graph._facts import Facts, worst
from ..graph._finding import Finding
from ..graph._graph import Graph
from ._colours import colour
from ._view import Drawing

Result = dict[str, Any]
_GRADIENT = [{"stop": 0, "bgColor": "#fff3e3"}, {"stop": 1, "bgColor": "#d9601f"}]


class ModelExplorerView:
    """See `View`: the error of each node, or its status where it has none.

    The colours are the nodes' own: Model Explorer's gradients are linear, and errors are not.
    """

    suffixes: tuple[str, ...] = (".json",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return _data(graph, suffix, {"name": "error"}, _error)


class StatusView:
    """See `View`: the status of each node, which a box of many counts."""

    suffixes: tuple[str, ...] = (".json",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return _data(graph, suffix, {"name": "status", "showExpandedSummaryOnGroupNode": True}, _status)


class TimeView:
    """See `View`: how long each node takes, in seconds."""

    suffixes: tuple[str, ...] = (".json",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return _data(graph, suffix, {"name": "time (s)", "gradient": _GRADIENT}, _time)


def _data(graph: Graph, suffix: str, head: Mapping[str, Any], result: Callable[[Finding], Result | None]) -> Drawing:
    """One file for one quantity, which is all that the format holds: for the graph that is open when it is loaded."""
    results = {key: found for key, finding in _keyed(graph) if (found := result(finding)) is not None}
    if not results:
        raise ViewError(
            f"graph {graph.name!r} has no {head['name']} for Model Explorer to show: draw the graph of a comparison's "
            "report"
        )
    return Drawing.of(json.dumps({**head, "results": results}, indent=2, allow_nan=False), suffix)


def _keyed(graph: Graph) -> Iterator[tuple[str, Finding]]:
    """The worst finding of each node by the id that Model Explorer gives it.

    For ONNX these are the ids of its adapter, the package `model-explorer-onnx` 0.4: inputs and constants are nodes,
    too. For torch's programs they are the names of the nodes.
    """
    facts = Facts(graph)
    for name in (*graph.inputs, *graph.constants):
        found = worst(graph.findings.get(name, ()))
        if found is not None:
            yield (f"[value] {name}" if graph.onnx is not None else name), found
    ids = {} if graph.onnx is None else _ids(graph, graph.onnx)
    for node in graph.nodes:
        found = facts.worst(node)
        if found is not None:
            yield ids.get(node.name, node.name), found


def _ids(graph: Graph, model: ir.Model) -> dict[str, str]:
    """The adapter names nodes with onnx-ir's own pass, where they have no name or one twice."""
    copy = model.clone()
    NameFixPass()(copy)
    made = {out.name: fixed.name for node, fixed in zip(model.graph, copy.graph, strict=True) for out in node.outputs}
    return {graph.producer[name].name: key for name, key in made.items() if name in graph.producer and name and key}


def _error(finding: Finding) -> Result:
    number = finding.error
    value = finding.status if number is None else number if math.isfinite(number) else repr(number)
    return {"value": value, "bgColor": colour(finding)}


def _status(finding: Finding) -> Result:
    return {"value": finding.status, "bgColor": colour(finding)}


def _time(finding: Finding) -> Result | None:
    return None if finding.seconds is None else {"value": finding.seconds}
