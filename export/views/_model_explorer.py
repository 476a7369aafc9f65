"""Write findings of a comparison as node data for Google's Model Explorer."""

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
    """See `View`: the error of each node, or its status if it has no error.

    Each node has its own color, because Model Explorer's gradients are linear and errors span orders of magnitude.
    """

    suffixes: tuple[str, ...] = (".json",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return _data(graph, suffix, {"name": "error"}, _error)


class StatusView:
    """See `View`: the status of each node; groups show counts."""

    suffixes: tuple[str, ...] = (".json",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return _data(graph, suffix, {"name": "status", "showExpandedSummaryOnGroupNode": True}, _status)


class TimeView:
    """See `View`: the time of each node in seconds."""

    suffixes: tuple[str, ...] = (".json",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return _data(graph, suffix, {"name": "time (s)", "gradient": _GRADIENT}, _time)


def _data(graph: Graph, suffix: str, head: Mapping[str, Any], result: Callable[[Finding], Result | None]) -> Drawing:
    """Return a file with one quantity, as the format requires; it applies to the graph that is open."""
    results = {key: found for key, finding in _keyed(graph) if (found := result(finding)) is not None}
    if not results:
        raise ViewError(
            f"graph {graph.name!r} has no {head['name']} for Model Explorer to show: draw the graph of a comparison's "
            "report"
        )
    return Drawing.of(json.dumps({**head, "results": results}, indent=2, allow_nan=False), suffix)


def _keyed(graph: Graph) -> Iterator[tuple[str, Finding]]:
    """Yield the worst finding of each node with the node's id in Model Explorer.

    For ONNX these are the ids of the adapter `model-explorer-onnx` 0.4, in which inputs and constants are nodes, too.
    For torch's programs they are the names of the nodes.
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
    """Return the ids of nodes: the adapter renames nodes with missing or duplicate names with onnx-ir's pass."""
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
