"""A table of comparisons: a matrix of models and backends, or a sweep over input sizes."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from filch.steal import FilchError

from ..common._source import user_frame
from ..rendering._result import NextCommand, Result
from ..rendering._table import Block, Column, Table, cell_text, cut, fit_names
from ._report import Report

OPTIMIZED_NOTE = "the program was compared with the exporter's optimizations, as it can't be run without them: "
_LABEL_WIDTH = 24  # characters


@dataclass(frozen=True)
class Cell:
    """The outcome of one of several comparisons.

    Attributes:
        labels: its model, dtype, size, backend …, by the title of the column.
        status: `close`, `different`, `failed` (it could not be compared) or `missing` (the backend or device is not
            available); the last two never count as passing.
        worst: the largest harmonic error; None if no value was judged.
        detail: the first divergence, or why it could not be compared; for a close one, how many values were not judged,
            and why the program was optimized.
    """

    labels: dict[str, str]
    status: Literal["close", "different", "failed", "missing"]
    worst: float | None = None
    detail: str = ""


def run_cell(labels: dict[str, str], run: Callable[[], Report]) -> Cell:
    """Run a comparison and return its outcome."""
    try:
        report = run()
    except FilchError as error:
        return Cell(labels, "failed", None, failure_text(error))
    worst = None if report.worst is None else report.worst.error
    if report.first_divergence is not None:
        return Cell(labels, "different", worst, str(report.first_divergence))
    if report.interface:
        return Cell(labels, "different", worst, report.interface[0])
    if not report.close:
        return Cell(labels, "failed", worst, report.headline)
    judged = [row.judged for row in report.rows if row.kind != "constant"]
    details = [] if all(judged) else [f"close, {judged.count(False)} of {len(judged)} not judged"]
    details += [note for note in report.notes if note.startswith(OPTIMIZED_NOTE)]
    return Cell(labels, "close", worst, "; ".join(details))


def failure_text(error: FilchError) -> str:
    """Return the message of an error, with the line of the user's code in which it occurred."""
    frame = user_frame(error)
    return f"{error} ({frame})" if frame else str(error)


def exit_code(cells: Iterable[Cell]) -> int:
    """Return 0 if all are close and 1 if one differs; else 2: one is missing or failed, or there is none."""
    statuses = {cell.status for cell in cells}
    return 1 if "different" in statuses else 0 if statuses == {"close"} else 2


@dataclass(frozen=True, repr=False)
class CellTable(Result):
    """The outcomes of many comparisons.

    Attributes:
        cells: in the order in which they ran; all have the same labels.
        command: the command line that examines the first one that is not close; `""` if it is not known.
    """

    cells: tuple[Cell, ...]
    command: str = ""

    @property
    def next_command(self) -> NextCommand | None:
        """The command that examines the first comparison that is not close; None if it is not known."""
        return NextCommand(self.command, "examine the first that is not close") if self.command else None

    @property
    def headline(self) -> str:
        """The number of comparisons of each status."""
        counts = Counter(cell.status for cell in self.cells)
        return f"{len(self.cells)} comparisons: {', '.join(f'{count} {status}' for status, count in counts.items())}"

    def blocks(self, *, wide: bool = False) -> Iterable[Block]:
        """Return a row for each comparison, and below them the full reasons of those that could not run."""
        titles = list(self.cells[0].labels) if self.cells else []
        if wide:
            columns = (*titles, "status", "error", "first divergence")
            rows = ((*cell.labels.values(), cell.status, cell_text(cell.worst), cell.detail) for cell in self.cells)
            yield Table(tuple(map(Column, columns)), tuple(rows))
            return
        narrow = [(*cell.labels.values(), cell_text(cell.worst)) for cell in self.cells]
        labels = (Column(title, fit_names, preferred=_LABEL_WIDTH) for title in titles)
        last = Column("first divergence", cut, least=24, fill=True)
        not_run = ("failed", "missing")
        outcomes = [
            f"{cell.status}: {cell.detail}" if cell.status in not_run else cell.detail or "all close"
            for cell in self.cells
        ]
        yield Table(
            (*labels, Column("error", right=True), last),
            tuple((*row, outcome) for row, outcome in zip(narrow, outcomes, strict=True)),
        )
        first = next((cell for cell in self.cells if cell.status == "different"), None)
        if first is not None:
            place = ", ".join(f"{name}={label}" for name, label in first.labels.items())
            yield from ("", f"first difference at {place}:", f"  {first.detail}")
        for reason in dict.fromkeys(cell.detail for cell in self.cells if cell.status in not_run):
            yield from ("", reason)
