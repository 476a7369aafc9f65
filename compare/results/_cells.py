"""The outcomes of many comparisons, a row each: a matrix of models and backends, or a sweep over input sizes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from filch.steal import FilchError

from ..rendering._result import Result
from ..rendering._table import Block, Column, Table, cell_text
from ._report import Report

OPTIMIZED = "the program was compared with the exporter's optimisations, as it can't be run without them: "
_LONGEST = 24
_ABSENT = ("failed", "missing")


@dataclass(frozen=True)
class Cell:
    """What one of several comparisons came to.

    Attributes:
        labels: what tells it from the others, by the title of the column.
        status: `close`, `different`, `failed` (it could not be compared) or `missing` (the backend or device is not
            there); the last two are never a pass.
        worst: the largest harmonic error, where something was judged.
        told: the first divergence, why there is no comparison, or how many values of a close one were not judged, and
            why it is the exporter's optimised program.
    """

    labels: dict[str, str]
    status: Literal["close", "different", "failed", "missing"]
    worst: float | None = None
    told: str = ""


def cell_of(labels: dict[str, str], run: Callable[[], Report]) -> Cell:
    """What a comparison comes to."""
    try:
        report = run()
    except FilchError as error:
        return Cell(labels, "failed", None, str(error))
    worst = None if report.worst is None else report.worst.error
    if report.first_divergence is not None:
        return Cell(labels, "different", worst, str(report.first_divergence))
    if report.interface:
        return Cell(labels, "different", worst, report.interface[0])
    if not report.close:
        return Cell(labels, "failed", worst, report.headline())
    judged = [row.judged for row in report.rows if row.kind != "constant"]
    without = f"{judged.count(False)} of {len(judged)} values could not"
    told = [] if all(judged) else [f"all that could be judged is close, {without}"]
    told += [note for note in report.notes if note.startswith(OPTIMIZED)]
    return Cell(labels, "close", worst, "; ".join(told))


def exit_code(cells: Iterable[Cell]) -> int:
    """0 if all are close, 1 if one differs; else 2, as one is missing or failed, or there is none."""
    found = {cell.status for cell in cells}
    return 1 if "different" in found else 0 if found == {"close"} else 2


@dataclass(frozen=True)
class CellTable(Result):
    """The outcomes of many comparisons.

    Attributes:
        cells: in the order in which they were made; all have the same labels.
    """

    cells: tuple[Cell, ...]

    def blocks(self, *, wide: bool = False) -> Iterable[Block]:
        """Return a row for each comparison, and below them in full why some could not be made."""
        titles = list(self.cells[0].labels) if self.cells else []
        if wide:
            columns = (*titles, "status", "error", "first divergence")
            rows = ((*cell.labels.values(), cell.status, cell_text(cell.worst), cell.told) for cell in self.cells)
            yield Table(tuple(map(Column, columns)), tuple(rows))
            return
        narrow = [(*map(_shortened, cell.labels.values()), cell_text(cell.worst)) for cell in self.cells]
        fixed = (
            Column(title, "never", least=min(_LONGEST, max(len(title), *(len(row[index]) for row in narrow))) + 1)
            for index, title in enumerate((*titles, "error"))
        )
        last = Column("first divergence", "ellipsis", fill=True)
        rows = ((*row, _outcome(cell)) for row, cell in zip(narrow, self.cells, strict=True))
        yield Table((*fixed, last), tuple(rows))
        for reason in dict.fromkeys(cell.told for cell in self.cells if cell.status in _ABSENT):
            yield from ("", reason)


def _outcome(cell: Cell) -> str:
    return f"{cell.status}: {cell.told}" if cell.status in _ABSENT else cell.told or "all close"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"…{text[-_LONGEST + 1 :]}"
