"""`PassRow`: a program after one pass, held against what the model did; `PassErrors`: all passes of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from filch.export import Graph

from ..rendering._json import plain
from ..rendering._result import Result
from ..rendering._table import Block, Column, Table, cell_text
from ._report import Report
from ._row_tables import ARROW
from ._rows import Row


@dataclass(frozen=True)
class PassRow:
    """A program after one pass, held against what the model did.

    Attributes:
        index: the pass's place in the run; 0 is the program as it was given.
        name: the pass's name; `Origin` is the program as it was given.
        nodes: how many the graph has.
        error: the largest harmonic error of a value; None if none was judged.
        diverged: how many values are not what they should be.
        judged: how many could be judged.
        values: how many there are.
        seconds: how long the pass took; None before all of them.
        introduced: the first value that is wrong and was not, or whose error is from no value that was; else None.
        failure: why it can't be judged, where that was not so before; `""` if it can.
        lower_precision: whether values of a lower precision than the model's were allowed.
        report: the comparison; None if there is none.
    """

    index: int
    name: str
    nodes: int
    error: float | None = None
    diverged: int = 0
    judged: int = 0
    values: int = 0
    seconds: float | None = None
    introduced: Row | None = None
    failure: str = ""
    lower_precision: bool = False
    report: Report | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PassErrors(Result):
    """A program before all passes and after each.

    Attributes:
        rows: in the order of the run; empty if there was none.
    """

    rows: tuple[PassRow, ...]

    @property
    def culprit(self) -> PassRow | None:
        """The first pass after which a value is wrong that was not before, or nothing can be judged; None if none."""
        return next((row for row in self.rows[1:] if row.introduced is not None or row.failure), None)

    @property
    def close(self) -> bool:
        """Whether after each pass all is as it should be, as far as it could be judged, the results always."""
        return bool(self.rows) and all(row.report is not None and row.report.close for row in self.rows)

    def blocks(self, *, wide: bool = False) -> Iterable[Block]:  # noqa: ARG002  all of it fits
        """Return a row for each pass, and below them which one introduces an error."""
        first = Column("pass", "ellipsis")  # the one that may be cut
        others = (Column(title, "never", right=True) for title in _TITLES)
        yield Table((first, *others), tuple((row.name, *_cells(row, self.culprit)) for row in self.rows))
        yield from ("", *self.verdict())

    def verdict(self) -> list[str]:
        """Return which pass introduces an error, and what else a reader has to know, a sentence each."""
        if not self.rows:
            return ["no pass ran"]
        lines = [_told(self.culprit, self.rows[0])]
        lowered = next((row for row in self.rows if row.lower_precision), None)
        if lowered is not None:
            lines.append(f"from {lowered.name} on, values of a lower precision were allowed")
        last = self.rows[-1]
        if last.judged < last.values:
            lines.append(f"after {last.name}, {last.values - last.judged} of {last.values} values could not be judged")
        return lines

    def derived(self) -> Mapping[str, Any]:
        """Return the name of the pass that introduces an error, and whether all is close."""
        return {"filch_passes": 1, "culprit": None if self.culprit is None else self.culprit.name, "close": self.close}

    def record(self) -> dict[str, Any]:
        """Return the rows without their reports, as JSON has it."""
        rows = [replace(row, report=None) for row in self.rows]
        return {**self.derived(), **plain(PassErrors(tuple(rows)))}


_TITLES = ("nodes", "error", "diverge", "judged", "seconds", "")


def _cells(row: PassRow, culprit: PassRow | None) -> tuple[str, ...]:
    numbers = (str(row.diverged), f"{row.judged}/{row.values}") if row.report is not None else ("?", "?")
    seconds = "" if row.seconds is None else f"{row.seconds:.3f}"
    return str(row.nodes), cell_text(row.error), *numbers, seconds, ARROW if row is culprit else ""


def _told(culprit: PassRow | None, origin: PassRow) -> str:
    if culprit is not None and culprit.introduced is not None:
        return f"{culprit.name}, pass {culprit.index}, introduces the error: {culprit.introduced}"
    if culprit is not None:
        return f"{culprit.name}, pass {culprit.index}, fails: {culprit.failure}"
    first = None if origin.report is None else origin.report.first_divergence
    if first is not None:
        return f"no pass introduces an error; the program as it was given differs: {first}"
    return "no pass introduces an error" + (f"; Origin can't be judged: {origin.failure}" if origin.failure else "")


def row_after(rows: Sequence[PassRow], row: PassRow, report: Report | None, graph: Graph) -> PassRow:
    """The row with what there is to say of a comparison, seen against the rows before it.

    Args:
        rows: those before it.
        row: with what is known of the pass, and why there is no comparison, if there is none.
        report: the comparison.
        graph: the graph that was compared.
    """
    if report is None:
        return row
    known = next((before.report for before in reversed(rows) if before.report is not None), None)
    values = [item for item in report.rows if item.kind != "output"]
    unjudged = _unjudged(report)
    return replace(
        row,
        error=None if report.worst is None else report.worst.error,
        diverged=len({(item.call, item.value) for item in report.diverged}),
        judged=sum(item.judged for item in values),
        values=len(values),
        introduced=None if known is None or known is report else _introduced(report, known, graph),
        failure="" if known is not None and unjudged == _unjudged(known) else unjudged,
        report=report,
    )


def _introduced(now: Report, before: Report, graph: Graph) -> Row | None:
    """The first value that became wrong: it was judged and was not, or is new and depends on none that was wrong."""
    judged = {(row.call, row.value) for row in before.rows if row.judged}
    wrong: dict[int, set[str]] = {}
    for row in before.diverged:
        wrong.setdefault(row.call, set()).add(row.value)
    made = {call: graph.computed_from(names) for call, names in wrong.items()}
    for row in now.diverged:
        known = row.value in wrong.get(row.call, ())
        if not known and ((row.call, row.value) in judged or row.value not in made.get(row.call, ())):
            return row
    return None


def _unjudged(report: Report) -> str:
    """Why the results can't be judged; `""` if they can."""
    outputs = [row for row in report.rows if row.kind == "output" and not row.judged]
    return "; ".join((*report.failed, *(f"output {row.value} was not judged: {row.reason}" for row in outputs)))
