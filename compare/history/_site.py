"""Write a history as a static site: one page without scripts, and the same contents as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from filch.steal import writing
from filch.steal.files._outputs import new_files, refuse_foreign, write_output

from ..common._errors import CompareError
from ..rendering._html import filled
from ..rendering._table import cell_text
from ..rendering._words import plural
from ..results._cells import CellStatus
from ._history import (
    CellHistory,
    CellOutcome,
    History,
    cell_name,
    changes_text,
    moment,
    ordered_labels,
    what_changed,
    when,
)
from ._regressions import BAD, GOOD

_MAX_GRID = 100_000  # boxes
_MAX_STREAKS = 20  # rows of the table of a cell
Labels = tuple[tuple[str, str], ...]


def write_site(history: History, folder: Path) -> list[Path]:
    """Write `index.html`, which needs no network and no other file, and `history.json`.

    Args:
        history: what to show.
        folder: where to write; it is created if it does not exist.

    Returns:
        the paths of the files.

    Raises:
        CompareError: a file can't be written, or the grid of models and backends would be too large.
    """
    contents = {"index.html": as_site(history), "history.json": history.to_json()}
    with writing(folder, CompareError), new_files(folder) as new:
        refuse_foreign(folder, contents, ("index.html", "<title>Filch history</title>"))  # raises for others' files
        for name, text in contents.items():
            write_output(new / name, text, errors="backslashreplace")
    return [folder / name for name in contents]


def as_site(history: History) -> str:
    """Return the page."""
    places = {run: place for place, run in enumerate(history.runs)}
    anchors = {_identity(cell.labels): f"cell-{index}" for index, cell in enumerate(history.cells)}
    open_regressions = {
        _identity(regression.labels): regression
        for cluster in history.clusters
        for regression in cluster.regressions
        if regression.fixed is None
    }
    # A row for each model and its sizes, a column for each backend and dtype.
    boxes = {(_labels(cell, column=False), _labels(cell, column=True)): cell for cell in history.cells}
    rows = [*dict.fromkeys(row for row, _ in boxes)]
    columns = sorted({column for _, column in boxes})
    if len(rows) * len(columns) > _MAX_GRID:
        raise CompareError(
            f"the grid of {len(rows):,} models and {len(columns):,} backends would have more than {_MAX_GRID:,} boxes"
        )
    return filled(
        __package__,
        "site.html.jinja",
        history=history,
        latest=history.runs[-1],
        anchor=lambda labels: anchors[_identity(labels)],
        height=HEIGHT,
        rows=rows,
        columns=columns,
        boxes=boxes,
        cells_of=lambda row: [boxes[row, column] for column in columns if (row, column) in boxes],
        column_of=lambda cell: _labels(cell, column=True),
        open_regression=lambda cell: open_regressions.get(_identity(cell.labels)),
        draw=lambda cell: timeline(cell.outcomes, places),
        streaks=lambda cell: streaks_of(cell.outcomes)[: -_MAX_STREAKS - 1 : -1],  # the last ones, newest first
        number=cell_text,
        phrase=lambda labels: cell_name(dict(labels)),
        **{text.__name__: text for text in _TEXTS},
    )


def _labels(cell: CellHistory, *, column: bool) -> Labels:
    """Return the labels of a cell that select its column in the grid, or those that select its row."""
    items = ordered_labels(cell.labels).items()
    return tuple((title, text) for title, text in items if (title in ("backend", "dtype")) == column)


def _identity(labels: Mapping[str, str]) -> Labels:
    """Return labels as a key of dictionaries."""
    return tuple(labels.items())


HEIGHT = 100  # units of the drawing, stretched to the height on the page; a run is one unit wide
_BAND = 12  # units for the status below the errors
_TOP = 6  # units above the largest error


@dataclass(frozen=True)
class Streak:
    """Consecutive outcomes of a cell with the same status and the same blame.

    Attributes:
        kind: `good`, `bad` or `not-run`.
        status: their status.
        first: the first run.
        last: the last run.
        count: the number of outcomes.
        error: the largest error; None if there is none.
        blame: the module and operator that are blamed in all of them; `""` if none are.
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
        lines: the heights of the lines at powers of ten, from the lower end of the scale on; the upper may have none.
        low: the error at the bottom, as text; `""` if no error is known.
        high: the error at the top, likewise.
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
    """Return outcomes with the same status and the same blame as one."""
    first, last = outcomes[0], outcomes[-1]
    error = max((outcome.error for outcome in outcomes if outcome.error is not None), default=None)
    return Streak(kind_of(first.status), first.status, first.run, last.run, len(outcomes), error, _blamed(first))


def _blamed(outcome: CellOutcome) -> str:
    """Return the module and operator that are blamed, or `""`."""
    return "" if outcome.blame is None else outcome.blame.place


_TEXTS: tuple[Any, ...] = (changes_text, cell_name, kind_of, moment, plural, what_changed, when)
