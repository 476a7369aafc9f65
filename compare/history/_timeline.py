"""Draw the outcomes of a cell over the runs: the error on a logarithmic scale, and the status."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..results._cells import CellStatus
from ._history import CellOutcome
from ._regressions import BAD, GOOD

HEIGHT = 100  # units of the drawing, stretched to the height on the page; a run is one unit wide
_BAND = 12  # units for the status below the errors
_TOP = 6  # units above the largest error


@dataclass(frozen=True)
class Streak:
    """Consecutive outcomes of a cell with the same status.

    Attributes:
        kind: `good`, `bad` or `not-run`.
        status: their status.
        first: the first run.
        last: the last run.
        count: the number of outcomes.
        error: the largest error; None if there is none.
        blame: the module and operator that are blamed in the first of them.
    """

    kind: str
    status: CellStatus
    first: str
    last: str
    count: int
    error: float | None
    blame: str


@dataclass(frozen=True)
class Timeline:
    """The parts of a drawing, whose coordinates are numbers of this module.

    Attributes:
        points: the place of each run with an error, from the left and from the top, and the kind of the outcome.
        band: the left side, width and kind of each rectangle of the status, and its tooltip.
        lines: the heights of the lines at the ends of the scale and at powers of ten between.
        low: the error at the bottom, as text; `""` if no error is known.
        high: the error at the top.
    """

    points: tuple[tuple[float, float, str], ...]
    band: tuple[tuple[int, int, Streak], ...]
    lines: tuple[float, ...]
    low: str
    high: str


def kind_of(status: CellStatus) -> str:
    """Return `good`, `bad` or `not-run`."""
    return "good" if status == GOOD else "bad" if status in BAD else "not-run"


def streaks_of(outcomes: Sequence[CellOutcome]) -> list[Streak]:
    """Return consecutive outcomes with the same status and the same blame, oldest first."""
    return [_streak([*group]) for _, group in groupby(outcomes, key=lambda outcome: (outcome.status, _blamed(outcome)))]


def timeline(outcomes: Sequence[CellOutcome], places: Mapping[str, int]) -> Timeline:
    """Return the drawing of a cell.

    Args:
        outcomes: those of the cell, oldest first.
        places: the place of each run, from 0 for the oldest one.
    """
    errors = {outcome.run: outcome.error for outcome in outcomes if outcome.error is not None}
    exponents = [math.log10(error) for error in errors.values() if 0 < error < math.inf]
    low = math.floor(min(exponents, default=0))
    high = max(math.ceil(max(exponents, default=0)), low + 1)
    height = HEIGHT - _BAND - 2 * _TOP

    def y(exponent: float) -> float:
        return round(_TOP + (high - exponent) / (high - low) * height, 1)

    def exponent_of(error: float) -> float:
        return math.log10(error) if 0 < error < math.inf else low if error <= 0 else high  # NaN is at the top, too

    points = [
        (places[outcome.run] + 0.5, y(exponent_of(errors[outcome.run])), kind_of(outcome.status))
        for outcome in outcomes
        if outcome.run in errors
    ]
    band = [
        (places[streak.first], places[streak.last] + 1 - places[streak.first], streak)
        for streak in streaks_of(outcomes)
    ]
    step = max(1, (high - low) // 4)
    return Timeline(
        tuple(points),
        tuple(band),
        tuple(map(y, range(low, high + 1, step))),
        f"1e{low:+03d}" if exponents else "",
        f"1e{high:+03d}" if exponents else "",
    )


def _streak(outcomes: Sequence[CellOutcome]) -> Streak:
    first, errors = outcomes[0], [outcome.error for outcome in outcomes if outcome.error is not None]
    return Streak(
        *(kind_of(first.status), first.status, first.run, outcomes[-1].run, len(outcomes)),
        max(errors, default=None),
        _blamed(first),
    )


def _blamed(outcome: CellOutcome) -> str:
    return "" if outcome.blame is None else outcome.blame.place
