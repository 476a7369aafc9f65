"""`PassRow`: a program after one pass, held against what the model did; `PassErrors`: all passes of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from filch.export import Graph

from ._report import Report, Row


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
class PassErrors:
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
