"""`PassRow`: a program after one pass, compared with the model; `PassErrors`: all passes of a run."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from filch.export import Graph

from ..rendering._json import NOT_IN_JSON, plain
from ..rendering._outcome import Proof
from ..rendering._result import Result
from ..rendering._table import Block, Column, Columns, fit_names, table_of
from ._report import Report
from ._row_tables import ARROW
from ._rows import Row


@dataclass(frozen=True)
class PassRow:
    """A program after one pass, compared with the model.

    Attributes:
        index: the position of the pass in the run; 0 is the program before all passes.
        name: the name of the pass; `Origin` for the program before all passes.
        nodes: the number of nodes of the graph.
        error: the largest harmonic error of a value; None if none was judged.
        diverged: the number of values that differ.
        judged: the number of values that were judged.
        values: the number of values.
        seconds: the run time of the pass; None for `Origin`.
        introduced: the first value that differs only since this pass, or a new one that differs without depending on a
            wrong value; None if there is none.
        failure: why the outputs can't be judged, if the pass caused that; else `""`.
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
    report: Report | None = field(default=None, repr=False, metadata=NOT_IN_JSON)


@dataclass(frozen=True, repr=False)
class PassErrors(Result):
    """A program before all passes and after each of them, compared with the model.

    Attributes:
        rows: in the order of the run; empty if no pass ran.
    """

    rows: tuple[PassRow, ...]
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_passes": 1}

    @property
    def culprit(self) -> PassRow | None:
        """The first pass that introduces an error or makes the outputs impossible to judge; None if there is none."""
        return next((row for row in self.rows[1:] if row.introduced is not None or row.failure), None)

    @property
    def proof(self) -> Proof:
        """What was judged before the passes and after each."""
        return Proof.together(
            row.report.proof if row.report is not None else Proof.impossible(f"{row.name}: {row.failure}")
            for row in self.rows
        )

    @property
    def headline(self) -> str:
        """The pass that introduces an error."""
        return self.verdict()[0]

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:  # noqa: ARG002  nothing is cut
        """Return a row for each pass, and below them the pass that introduces an error."""
        mark: Columns[PassRow] = {Column("", right=True): lambda row: ARROW if row is self.culprit else None}
        yield table_of(_COLUMNS | mark, self.rows)
        yield from ("", *self.verdict())

    def verdict(self) -> list[str]:
        """Return sentences: the pass that introduces an error, and remarks for the reader."""
        if not self.rows:
            return ["no pass ran"]
        lines = [_culprit_text(self.culprit, self.rows[0])]
        lowered = next((row for row in self.rows if row.lower_precision), None)
        if lowered is not None:
            lines.append(f"from {lowered.name} on, values of a lower precision were allowed")
        last = self.rows[-1]
        if last.judged < last.values:
            lines.append(f"after {last.name}, {last.values - last.judged} of {last.values} values could not be judged")
        return lines

    def derived(self) -> Mapping[str, Any]:
        """Return the outcome, and the name of the pass that introduces an error."""
        return {**super().derived(), "culprit": None if self.culprit is None else self.culprit.name}

    def record(self) -> dict[str, Any]:
        """Return the rows without their reports, as JSON has it."""
        return {**super().record(), "rows": [{**plain(row), "report": None} for row in self.rows]}


_COLUMNS: Columns[PassRow] = {
    Column("pass", fit_names): lambda row: row.name,
    Column("nodes", right=True): lambda row: row.nodes,
    Column("error", right=True): lambda row: row.error,
    Column("diverge", right=True): lambda row: row.diverged if row.report is not None else "?",
    Column("judged", right=True): lambda row: f"{row.judged}/{row.values}" if row.report is not None else "?",
    Column("seconds", right=True): lambda row: None if row.seconds is None else f"{row.seconds:.3f}",
}


def _culprit_text(culprit: PassRow | None, origin: PassRow) -> str:
    """Return which pass introduces the error, or that none does; `origin` is the program before the passes."""
    if culprit is not None and culprit.introduced is not None:
        return f"{culprit.name}, pass {culprit.index}, introduces the error: {culprit.introduced}"
    if culprit is not None:
        return f"{culprit.name}, pass {culprit.index}, fails: {culprit.failure}"
    first = None if origin.report is None else origin.report.first_divergence
    if first is not None:
        return f"no pass introduces an error; the program before the passes differs: {first}"
    return "no pass introduces an error" + (f"; Origin can't be judged: {origin.failure}" if origin.failure else "")


def pass_row(
    before: Sequence[PassRow], name: str, graph: Graph, report: Report | None, failure: str, **known: Any
) -> PassRow:
    """Return the row of a pass.

    Args:
        before: the rows of the passes before.
        name: the name of the pass.
        graph: the graph that was compared.
        report: the comparison; None if there is none.
        failure: why there is none.
        **known: further attributes.
    """
    row = partial(PassRow, len(before), name, len(graph.nodes), **known)
    if report is None:
        return row(failure=failure)
    # A pass that changed nothing has the report of the pass before it.
    previous = next((item.report for item in reversed(before) if item.report is not None), None)
    values = [item for item in report.rows if item.kind != "output"]
    failure = "; ".join(report.gap_sentences())  # not of this pass if the one before has the same
    return row(
        error=None if report.worst is None else report.worst.error,
        diverged=len({(item.call, item.value) for item in report.diverged}),
        judged=sum(item.judged for item in values),
        values=len(values),
        introduced=None if previous is None or previous is report else _introduced(report, previous, graph),
        failure="" if previous is not None and failure == "; ".join(previous.gap_sentences()) else failure,
        report=report,
    )


def _introduced(now: Report, before: Report, graph: Graph) -> Row | None:
    """Return the first value that was close before and differs now, or a new one that depends on no wrong value."""
    judged = {(row.call, row.value) for row in before.rows if row.judged}
    wrong = defaultdict[int, set[str]](set)  # the names of the values that differed before, by call of the model
    for row in before.diverged:
        wrong[row.call].add(row.value)
    affected = {call: graph.computed_from(names) for call, names in wrong.items()}

    def is_introduced(row: Row) -> bool:
        is_inherited = (row.call, row.value) not in judged and row.value in affected.get(row.call, ())
        return row.value not in wrong[row.call] and not is_inherited

    return next(filter(is_introduced, now.diverged), None)
