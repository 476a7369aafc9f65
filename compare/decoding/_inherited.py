"""Leave out the positions at which a value cannot be wrong, because nothing that it is computed from is."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from filch.export import Graph

from ..results._rows import Row
from ._positioned_row import PositionedRow


def without_rounding(graph: Graph, items: Iterable[PositionedRow], rows: Mapping[str, Row]) -> list[PositionedRow]:
    """Return wrong values without the positions before those of the wrong values that they are computed from.

    The node of a value that is right on the reference's numbers makes nothing wrong by itself. At earlier positions,
    its numbers differ by rounding that it, or a node before it, amplifies.

    Args:
        graph: the graph.
        items: the values that are wrong at some position.
        rows: the rows of all values that were compared, by name.
    """
    wrong = {item.row.value: item for item in items}
    first = dict.fromkeys(graph.inputs, 0)  # the first position at which a value may be wrong
    for node in graph.nodes:
        inherited = min((first[name] for name in node.reads if name in first), default=None)
        for name in node.outputs:
            item = wrong.get(name)
            if item is not None and inherited is not None and _is_right_alone(rows[name]):
                wrong[name] = item = _from(item, inherited)
            if item is not None:
                first[name] = item.position or 0
            elif inherited is not None and not _is_right(rows, name):
                first[name] = inherited
    return [*wrong.values()]


def _is_right_alone(row: Row) -> bool:
    return row.isolated is not None and row.isolated.sound


def _is_right(rows: Mapping[str, Row], name: str) -> bool:
    return name in rows and rows[name].judged and not rows[name].diverged


def _from(item: PositionedRow, start: int) -> PositionedRow:
    """Return a wrong value that is right before a position."""
    places = tuple(position for position in item.wrong if position >= start)
    if not places or len(places) == len(item.wrong):
        return item
    return replace(item, position=places[0], sequence=None, wrong=places)
