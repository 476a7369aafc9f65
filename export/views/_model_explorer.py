"""Write findings of a comparison as node data for Google's Model Explorer."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass

from .._errors import ViewError
from ..graph._finding import Finding
from ..graph._graph import Graph
from ._colors import color
from ._view import Drawing

Result = dict[str, Any]
_GRADIENT = [{"stop": 0, "bgColor": "#fff3e3"}, {"stop": 1, "bgColor": "#d9601f"}]


@dataclass(frozen=True)
class NodeDataView:
    """See `View`: one quantity of each node, as the format requires; it applies to the graph that is open.

    Attributes:
        head: the name of the quantity, and settings of the viewer.
        result: returns what to show of a finding, or None.
        suffixes: see `View`.
    """

    head: Mapping[str, Any]
    result: Callable[[Finding], Result | None]
    suffixes: tuple[str, ...] = (".json",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        results = {key: result for key, finding in _findings(graph) if (result := self.result(finding)) is not None}
        if not results:
            raise ViewError(
                f"graph {graph.name!r} has no {self.head['name']} for Model Explorer to show: draw the graph of a "
                "comparison's report"
            )
        return Drawing.of(json.dumps({**self.head, "results": results}, indent=2, allow_nan=False), suffix)


def _findings(graph: Graph) -> Iterator[tuple[str, Finding]]:
    """Yield the worst finding of each node with the node's id in Model Explorer.

    For ONNX these are the ids of the adapter `model-explorer-onnx` 0.4, in which inputs and constants are nodes, too.
    For torch's programs they are the names of the nodes.
    """
    for name in (*graph.inputs, *graph.constants):
        finding = graph.worst_finding(name)
        if finding is not None:
            yield (f"[value] {name}" if graph.onnx is not None else name), finding
    ids = {} if graph.onnx is None else _ids(graph, graph.onnx)
    for node in graph.nodes:
        finding = graph.worst_finding(*node.outputs)
        if finding is not None:
            yield ids.get(node.name, node.name), finding


def _ids(graph: Graph, model: ir.Model) -> dict[str, str]:
    """Return the ids by the names of nodes.

    The adapter renames nodes with missing or duplicate names with onnx-ir's pass.
    """
    copy = model.clone()
    NameFixPass()(copy)
    keys = {out.name: fixed.name for node, fixed in zip(model.graph, copy.graph, strict=True) for out in node.outputs}
    return {graph.producer[name].name: key for name, key in keys.items() if name in graph.producer and name and key}


def _error(finding: Finding) -> Result:
    """Return the error, or the status without an error. Gradients would be linear; errors span orders of magnitude."""
    number = finding.error
    value = finding.status if number is None else number if math.isfinite(number) else repr(number)
    return {"value": value, "bgColor": color(finding)}


def _status(finding: Finding) -> Result:
    return {"value": finding.status, "bgColor": color(finding)}


def _time(finding: Finding) -> Result | None:
    return None if finding.seconds is None else {"value": finding.seconds}


error_view = partial(NodeDataView, {"name": "error"}, _error)
status_view = partial(NodeDataView, {"name": "status", "showExpandedSummaryOnGroupNode": True}, _status)
time_view = partial(NodeDataView, {"name": "time (s)", "gradient": _GRADIENT}, _time)
