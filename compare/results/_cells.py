"""The outcomes of many comparisons: a table of them, and the rows of a ledger of many runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, Self

from filch.steal import FilchError

from ..common._source import user_frame
from ..rendering._json import typed
from ..rendering._outcome import Gap, Proof
from ..rendering._result import NextCommand, Result
from ..rendering._table import Block, Column, Columns, cut, fit_names, table_of
from ..rendering._words import plural
from ._report import Report
from ._rows import Row

CellStatus = Literal["close", "different", "incomplete", "failed", "missing", "crashed", "timeout", "lost"]
NOT_COMPARED: tuple[CellStatus, ...] = ("failed", "missing", "crashed", "timeout", "lost")
OPTIMIZED_NOTE = "the program was compared with the exporter's optimizations, as it can't be run without them: "
_UNSETTLED = ("incomplete", *NOT_COMPARED)
_LABEL_WIDTH = 24  # characters


@dataclass(frozen=True)
class Divergence:
    """The place of the first divergence of a comparison.

    Attributes:
        value: the name of the value.
        module: the path of the module it belongs to; None if not known.
        operator: the operator of its node.
        times_rounding: its distance from float64 as a multiple of the rounding level; None if it was judged by
            tolerance.
    """

    value: str
    module: str | None
    operator: str
    times_rounding: float | None

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.place, f"value {self.value}" if self.value else "")))

    @property
    def place(self) -> str:
        """The operator and the module."""
        return " in ".join(filter(None, (self.operator, self.module)))

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the place of a row."""
        return cls(row.value, row.module, row.op, None if row.float64 is None else row.float64.ratio)


@dataclass(frozen=True)
class Cell:
    """The outcome of one of several comparisons.

    Attributes:
        labels: its model, dtype, size, backend …, by the title of the column.
        status: `close`, `different`, `incomplete` (see `Proof`), `failed` (it could not be compared), `missing`
            (the backend or device is not available), and of a process of its own `crashed` (it died), `timeout` or
            `lost` (its worker or node disappeared).
        worst: the largest harmonic error; None if no value was judged.
        detail: the first divergence, or why it could not be compared; for a close one, how many values were not judged,
            and why the program was optimized.
        blame: the place of the first divergence; None if no value differs.
        resumed: whether it ran before, and its outcome was read from a ledger.
        gaps: of an incomplete one, the names of what was not judged (see `Gap`).
    """

    labels: dict[str, str]
    status: CellStatus
    worst: float | None = None
    detail: str = ""
    blame: Divergence | None = None
    resumed: bool = False
    gaps: tuple[str, ...] = ()

    @property
    def proof(self) -> Proof:
        """What it shows; nothing if it could not be made."""
        if self.status in NOT_COMPARED:
            return Proof.impossible(self.detail or self.status)
        names = self.gaps or (("",) if self.status == "incomplete" else ())  # an incomplete one has at least one gap
        return Proof(1, self.status == "different", tuple(Gap(name, self.detail) for name in names))


def run_cell(labels: dict[str, str], run: Callable[[], Report]) -> Cell:
    """Run a comparison and return its outcome."""
    try:
        report = run()
    except FilchError as error:
        return Cell(labels, "failed", None, failure_text(error))
    worst = None if report.worst is None else report.worst.error
    first, gaps = report.first_divergence, report.proof.gaps if report.outcome == "incomplete" else ()
    judged = [row.judged for row in report.rows if row.kind != "constant"]
    details = [] if all(judged) else [f"close, {judged.count(False)} of {len(judged)} not judged"]
    details += [note for note in report.notes if note.startswith(OPTIMIZED_NOTE)]
    text = {
        "different": report.first_difference,
        "incomplete": "; ".join(report.gap_sentences()),
        "close": "; ".join(details),
    }
    blame = None if first is None else Divergence.of(first)
    return Cell(labels, report.outcome, worst, text[report.outcome], blame, gaps=tuple(gap.name for gap in gaps))


def failure_text(error: FilchError) -> str:
    """Return the message of an error, with the line of the user's code in which it occurred."""
    frame = user_frame(error)
    return f"{error} ({frame})" if frame else str(error)


@dataclass(frozen=True, repr=False)
class CellTable(Result):
    """The outcomes of many comparisons; the outcome of all is the worst of them.

    Attributes:
        cells: in the order in which they were asked for.
        command: the command line that examines the first one that is not close; `""` if it is not known.
    """

    cells: tuple[Cell, ...]
    command: str = ""

    @property
    def proof(self) -> Proof:
        """What was judged in all comparisons."""
        return Proof.together(cell.proof for cell in self.cells)

    @property
    def next_command(self) -> NextCommand | None:
        """The command that examines the first comparison that is not close; None if it is not known."""
        return NextCommand(self.command, "examine the first that is not close") if self.command else None

    @property
    def headline(self) -> str:
        """The number of comparisons of each status, and how many of them ran before."""
        counts = Counter(cell.status for cell in self.cells)
        outcomes = ", ".join(f"{count} {status}" for status, count in counts.items())
        resumed = sum(cell.resumed for cell in self.cells)
        again = f"; resumed: {resumed} of them ran before" if resumed else ""
        return f"{plural(len(self.cells), 'comparison')}: {outcomes}{again}"

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:  # noqa: ARG002  all are shown
        """Return a row for each comparison, and below them the full reasons of those that could not run."""
        yield from self.heading()
        labels = dict.fromkeys(title for cell in self.cells for title in cell.labels)
        columns: Columns[Cell] = {
            Column(title, None if wide else fit_names, preferred=_LABEL_WIDTH): partial(label_of, title)
            for title in labels
        }
        yield table_of(columns | (_WIDE if wide else _NARROW), self.cells)
        if wide:
            return
        first = next((cell for cell in self.cells if cell.status == "different"), None)
        if first is not None:
            place = ", ".join(f"{name}={label}" for name, label in first.labels.items())
            yield from ("", f"first difference at {place}:", f"  {first.detail}")
        for reason in dict.fromkeys(cell.detail for cell in self.cells if cell.status in _UNSETTLED):
            yield from ("", reason)


class _Labeled(Protocol):
    @property
    def labels(self) -> Mapping[str, str]: ...


def label_of(title: str, item: _Labeled) -> str:
    """Return the label of a cell; `""` if it has none of this title."""
    return item.labels.get(title, "")


def _outcome(cell: Cell) -> str:
    """Return the text of the outcome in a narrow table, which has no column for the status."""
    return f"{cell.status}: {cell.detail}" if cell.status in _UNSETTLED else cell.detail or "all close"


_NARROW: Columns[Cell] = {
    Column("error", right=True): lambda cell: cell.worst,
    Column("first divergence", cut, least=24, fill=True): _outcome,
}
_WIDE: Columns[Cell] = {
    Column("status"): lambda cell: cell.status,
    Column("error"): lambda cell: cell.worst,
    Column("first divergence"): lambda cell: cell.detail,
}


VERSION = 1  # of the format of a ledger's rows
_OPTIONAL: Mapping[str, Any] = {"time": "", "seconds": 0.0, "attempt": 1, "reused": None, "gaps": []}  # may be missing


@dataclass(frozen=True)
class LedgerRow:
    """The outcome of a cell in a run.

    Attributes:
        filch_ledger: the version of the format.
        key: the content address of the cell; see `CellSpec.key`.
        run: when the run was started: UTC, ISO 8601.
        time: when the cell ended, likewise.
        seconds: how long it took, from the end of its imports.
        labels: its model, backend, dtype, device and sizes (`dim:batch`); the same in all runs.
        status: see `Cell`.
        error: the largest harmonic error; None if no value was judged.
        detail: see `Cell`.
        blame: the place of the first divergence; None if no value differs.
        attempt: 1, or more if earlier attempts were lost.
        reused: the run whose result this run has reused, as nothing has changed since; None if it compared the cell.
        gaps: see `Cell`.
        environment: versions, processor and settings of the worker (see `filch.steal.environment`); empty if they were
            not recorded.
    """

    filch_ledger: int
    key: str
    run: str
    time: str
    seconds: float
    labels: Mapping[str, str]
    status: CellStatus
    error: float | None
    detail: str
    blame: Divergence | None
    attempt: int
    reused: str | None
    gaps: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)

    def reused_in(self, run: str) -> "LedgerRow":
        """Return the row of a later run that reuses the result."""
        return replace(self, run=run, reused=self.reused or self.run)


def ledger_row(data: Mapping[str, Any]) -> LedgerRow:
    """Return a row from its entries, as JSON types.

    Raises:
        KeyError: one is missing.
        TypeError: one has another type.
    """
    row: LedgerRow = typed(LedgerRow, {**_OPTIONAL, **data, "environment": data["environment"] or {}}, "row")
    return row
