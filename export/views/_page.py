"""Write a graph as compact JSON for the HTML page."""

import json
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from filch.steal import Statistics
from filch.steal.text._markup import for_script
from filch.steal.text._visible import shortened

from ..graph._finding import Finding, Histogram, PositionErrors
from ..graph._folding import fold
from ..graph._graph import Graph
from ..graph._nodes import Frame, Node, Value

# The roles of values that AITemplate's pictures color.
_ROLES = ("intermediate", "view", "input", "output", "parameter")
# Operators whose result shares, or may share, the memory of their first input; in lower case, without domain and
# overload.
_VIEW_OPERATORS = frozenset(
    {
        *("alias", "broadcast_in_dim", "chunk", "detach", "diagonal", "expand", "flatten", "identity", "lift_fresh"),
        *("movedim", "narrow", "permute", "reshape", "select", "slice", "split", "squeeze", "t", "transpose"),
        *("unbind", "unflatten", "unsqueeze", "view", "view_as"),
    }
)
_MAX_INTEGER = 2**53  # JavaScript's numbers represent all integers up to here
_MAX_ATTRIBUTE = 4000  # characters: a table of indices may have millions
_MAX_TEXT = 20_000  # characters of any other text


def page_data(graph: Graph) -> str:
    """Return a graph, its source or reference graph and the functions that it calls as JSON.

    An object is a list of its members in the order in which `page/src/model.js` reads them, without trailing empty
    members; a text is its index in `strings`. NaN, infinities and integers above 2**53, which JSON or JavaScript can't
    represent, are written as text.
    """
    table = _StringTable()
    graphs = [_graph(graph, "graph", table)]
    if graph.source_graph is not None:
        graphs.append(_graph(graph.source_graph, "before", table))
    if graph.reference_graph is not None:
        graphs.append(_graph(graph.reference_graph, "reference", table))
    graphs += [_graph(function, "function", table) | {"of": name} for name, function in graph.functions.items()]
    data = {"remarks": [*graph.remarks], "close": graph.close, "graphs": graphs, **table.tables()}
    return for_script(json.dumps(data, allow_nan=False, separators=(",", ":")))


class _StringTable:
    """Tables of strings and lists, which are stored once and referred to by index."""

    def __init__(self) -> None:
        self._indices: dict[str, dict[Any, int]] = {"strings": {}, "lists": {}}

    def text(self, text: str | None) -> int | None:
        """Return the index of a text; None for None."""
        return None if text is None else self._index("strings", shortened(text, _MAX_TEXT))

    def texts(self, texts: Iterable[str]) -> int:
        """Return the index of a list of texts, for example the names of metrics."""
        return self._index("lists", tuple(self._index("strings", shortened(text, _MAX_TEXT)) for text in texts))

    def stack(self, stack: tuple[Frame, ...]) -> int:
        """Return the index of a list of calls: path, type and source of each, flattened."""
        return self.texts(part or "" for frame in stack for part in (frame.path, frame.type, frame.source))

    def _index(self, table: str, item: Any) -> int:
        return self._indices[table].setdefault(item, len(self._indices[table]))

    def tables(self) -> dict[str, list[Any]]:
        return {name: [*indices] for name, indices in self._indices.items()}


def _graph(graph: Graph, role: str, table: _StringTable) -> dict[str, Any]:
    """Convert a graph; it refers to values by index.

    Its role is `graph`, `before` (a source graph), `reference` (of another implementation) or `function`.
    """
    names = dict.fromkeys((*graph.inputs, *graph.constants, *graph.producer, *graph.outputs, *graph.findings))
    names |= dict.fromkeys(name for node in graph.nodes for name in node.reads)
    indices = {name: index for index, name in enumerate(names)}
    roles, folding = _roles(graph), fold(graph)
    return {
        "name": graph.name,
        "role": role,
        "values": [
            _value(graph.values.get(name, Value(name)), roles.get(name, "intermediate"), table) for name in names
        ],
        "groups": [
            [group.parent, table.text(group.path), table.text(str(group)), table.text(group.type)]
            for group in folding.groups
        ],
        "nodes": [
            _node(node, group, indices, table) for node, group in zip(graph.nodes, folding.node_groups, strict=True)
        ],
        "inputs": [indices[name] for name in graph.inputs],
        "outputs": [indices[name] for name in graph.outputs],
        "findings": [
            [indices[name], *_finding(finding, table)] for name, items in graph.findings.items() for finding in items
        ],
    }


def _roles(graph: Graph) -> dict[str, str]:
    """Map each value to one of `_ROLES`; 'output' takes precedence over the others."""
    result = dict.fromkeys((name for node in graph.nodes for name in node.outputs if name), "intermediate")
    result |= {
        node.outputs[0]: "view" for node in graph.nodes if _is_view(node.op) and node.outputs and node.outputs[0]
    }
    result |= dict.fromkeys(graph.constants, "parameter")
    result |= dict.fromkeys(graph.inputs, "input")
    return result | dict.fromkeys(graph.outputs, "output")


def _is_view(op: str) -> bool:
    """Return whether an operator such as `Reshape` or `aten.view.default` may return a view of its first input."""
    parts = op.rpartition("::")[2].lower().split(".")  # without the domain
    return (parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[0]) in _VIEW_OPERATORS


def _value(value: Value, role: str, table: _StringTable) -> list[Any]:
    dims = None if value.shape is None else ["?" if dim is None else str(dim) for dim in value.shape]
    shape = None if dims is None else table.texts(dims)
    return [table.text(value.name), _ROLES.index(role), table.text(value.dtype), shape]


def _node(node: Node, group: int | None, indices: dict[str, int], table: _StringTable) -> list[Any]:
    return _trimmed(
        [
            table.text(node.name),
            table.text(node.op),
            group,
            [indices[name] if name else None for name in node.inputs],
            [indices[name] if name else None for name in node.outputs],
            table.stack(node.stack) if node.stack else None,
            table.text(node.module),
            table.text(node.source),
            table.texts(part for name, item in node.attributes.items() for part in (name, _literal(item))),
            table.texts(node.origins) if node.origins else None,
            table.text(node.target),
            table.text(node.code),
            table.text(node.gradient_of),
            [indices[name] for name in node.captured if name] or None,
        ]
    )


def _finding(finding: Finding, table: _StringTable) -> list[Any]:
    return _trimmed(
        [
            table.text(finding.status),
            table.text(finding.kind),
            finding.call,
            int(finding.first),
            _number(finding.error),
            table.text(finding.text),
            table.text(finding.evidence),
            table.texts(finding.measures),
            [_number(measure) for measure in finding.measures.values()],
            _number(finding.seconds),
            _statistics(finding.reference),
            _statistics(finding.actual),
            _histogram(finding.histogram),
            table.texts(part for place in finding.places.items() for part in place) if finding.places else None,
            _positions(finding.positions),
        ]
    )


def _statistics(item: Statistics | None) -> list[Any] | None:
    if item is None:
        return None
    numbers = (item.minimum, item.maximum, item.mean, item.std, item.nan, item.inf)
    return [item.what, *(_number(number) for number in numbers), item.content]


def _histogram(item: Histogram | None) -> list[Any] | None:
    return None if item is None else [_number(item.low), _number(item.high), [*item.expected], [*item.actual]]


def _positions(item: PositionErrors | None) -> list[Any] | None:
    """Return the errors with the digits that a picture shows, and the wrong positions."""
    return None if item is None else [[_number(float(f"{error:.3g}")) for error in item.errors], [*item.wrong]]


def _number(number: Real | float | None) -> float | int | str | None:
    """Return a number for JSON: as text if it is infinite, NaN, or an integer that JavaScript cannot represent."""
    if number is None:
        return None
    if isinstance(number, Integral):
        whole = int(number)
        return whole if abs(whole) <= _MAX_INTEGER else str(whole)
    real = float(number)
    if math.isnan(real):
        return "NaN"
    return real if math.isfinite(real) else f"{'-' if real < 0 else ''}Infinity"


def _literal(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MAX_ATTRIBUTE else f"{text[:_MAX_ATTRIBUTE]}… ({len(text):,} characters)"


def _trimmed(members: list[Any]) -> list[Any]:
    """Remove trailing empty members."""
    while members and members[-1] in (None, ""):
        members.pop()
    return members
