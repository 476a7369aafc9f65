"""Write a history as a static site: one page without scripts, and the same contents as JSON."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from filch.steal import writing
from filch.steal.files._outputs import new_files, refuse_foreign, write_output

from ..common._errors import CompareError
from ..rendering._html import filled
from ..rendering._table import cell_text
from ..rendering._words import plural
from ._history import CellHistory, History, cell_name, changes_text, moment, ordered_labels, what_changed, when
from ._timeline import HEIGHT, kind_of, streaks_of, timeline

_TEMPLATE = "site.html.jinja"
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
        refuse_foreign(folder, contents, ("index.html", "<title>Filch history</title>"))
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
    rows, columns, boxes = _grid(history.cells)
    if len(rows) * len(columns) > _MAX_GRID:
        raise CompareError(
            f"the grid of {len(rows):,} models and {len(columns):,} backends would have more than {_MAX_GRID:,} boxes"
        )
    return filled(
        files(__package__ or "").joinpath(_TEMPLATE).read_text("utf-8"),
        history=history,
        latest=history.runs[-1],
        anchor=lambda labels: anchors[_identity(labels)],
        height=HEIGHT,
        rows=rows,
        columns=columns,
        boxes=boxes,
        cells_of=lambda row: [boxes[row, column] for column in columns if (row, column) in boxes],
        column_of=lambda cell: _part(cell.labels, column=True),
        open_regression=lambda cell: open_regressions.get(_identity(cell.labels)),
        draw=lambda cell: timeline(cell.outcomes, places),
        streaks=lambda cell: streaks_of(cell.outcomes)[: -_MAX_STREAKS - 1 : -1],
        **_TEXTS,
    )


_TEXTS = {
    "changes_text": changes_text,
    "cell_name": cell_name,
    "kind_of": kind_of,
    "moment": moment,
    "number": cell_text,
    "plural": plural,
    "what_changed": what_changed,
    "when": when,
    "phrase": lambda labels: cell_name(dict(labels)),
}


def _grid(cells: Sequence[CellHistory]) -> tuple[list[Labels], list[Labels], dict[tuple[Labels, Labels], CellHistory]]:
    """Return rows (models, with their sizes), columns (backends, with their dtypes), and the cells in them."""
    boxes = {(_part(cell.labels, column=False), _part(cell.labels, column=True)): cell for cell in cells}
    rows, columns = ({place[index]: None for place in boxes} for index in (0, 1))
    return [*rows], sorted(columns), boxes


def _part(labels: Mapping[str, str], *, column: bool) -> Labels:
    """Return the labels that select the column of the grid, or those that select the row."""
    return tuple(
        (title, text) for title, text in ordered_labels(labels).items() if (title in ("backend", "dtype")) == column
    )


def _identity(labels: Mapping[str, str]) -> Labels:
    return tuple(labels.items())
