"""Leave out the positions at which a value cannot be wrong, because nothing that it is computed from is."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from filch.export import Graph

from ..locating._inherited import inherited_starts
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

    def start_of(name: str, inherited_start: int | None) -> int | None:
        """Return the first wrong position of a value, from that of what its node reads; None if it is right."""
        item = wrong.get(name)
        if item is None:
            is_right = name in rows and rows[name].judged and not rows[name].diverged
            return None if is_right else inherited_start
        alone = item.row.isolated
        if inherited_start is not None and alone is not None and alone.sound:
            wrong[name] = item = _from(item, inherited_start)
        return item.position or 0

    # It calls `start_of` in the order of execution, which changes `wrong`; inputs may be wrong from position 0 on.
    inherited_starts(graph.nodes, start_of, dict.fromkeys(graph.inputs, 0))
    return [*wrong.values()]


def _from(item: PositionedRow, start: int) -> PositionedRow:
    """Return a wrong value as right before a position; unchanged if all or none of its wrong ones are before it."""
    places = tuple(position for position in item.wrong if position >= start)
    if not places or len(places) == len(item.wrong):
        return item
    return replace(item, position=places[0], sequence=None, wrong=places)  # the sequence was that of an earlier one
