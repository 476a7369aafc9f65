"""What lower precision costs: the goal, the outcome of a run, the cost of each node, and the report."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from filch.export import Precision

from ..common._errors import CompareError
from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import Tolerance, tolerance_for
from ..rendering._result import Result
from ..rendering._table import Block, Column, Table, cell_text
from ._row_tables import abbreviated

_SHOWN = 10  # nodes
_NARROW = 22
_USUAL_SNR = 20.0  # decibel: noise with a tenth of the signal's amplitude
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Goal:
    """When an output is good enough.

    Attributes:
        tolerance: how far its numbers may be off, if that is what counts.
        snr: the least signal-to-noise ratio in decibel, if that is.
    """

    tolerance: Tolerance | None = None
    snr: float | None = None

    @classmethod
    def of(cls, to: Precision, tolerance: float | Tolerance | None, snr: float | None) -> "Goal":
        """What a user asks for; by default, the tolerance of float16 or bfloat16, and 20 dB for integers.

        Raises:
            CompareError: both are asked for, or a ratio that is none.
        """
        if tolerance is not None and snr is not None:
            raise CompareError("the goal is a tolerance or an SNR, not both")
        if snr is not None and not math.isfinite(snr):
            raise CompareError(f"an SNR is a number of decibels, not {snr!r}")
        if tolerance is None and (snr is not None or to not in _DTYPES):
            return cls(snr=_USUAL_SNR if snr is None else snr)
        return cls(tolerance=tolerance_for(_DTYPES.get(to, torch.float32), tolerance))

    def measure(self, expected: torch.Tensor | None, actual: torch.Tensor | None) -> Difference:
        """How far an output is from what it should be."""
        return compare_tensors(expected, actual, tolerance=self.tolerance, lower_precision=True)

    def met(self, difference: Difference) -> bool:
        """Whether that is good enough; what must be exact (indices, say) has to be, whatever the ratio."""
        if self.snr is None or difference.problem or difference.tolerance == Tolerance(0.0, 0.0):
            return difference.close
        return not difference.nonfinite and difference.snr >= self.snr

    def __str__(self) -> str:
        if self.tolerance is None:
            return f"an SNR of at least {self.snr:g} dB"
        return f"an error of at most {self.tolerance.harmonic:.1e}"


@dataclass(frozen=True)
class Outcome:
    """How far the outputs of one program are from the model's, at the worst.

    Attributes:
        passes: whether each of them is good enough.
        error: the largest harmonic error.
        snr: the lowest signal-to-noise ratio, in decibel.
        overflowed: elements that are NaN or infinite and should not be.
        problem: what can't be compared by numbers, or `""`.
    """

    passes: bool
    error: float
    snr: float
    overflowed: int = 0
    problem: str = ""

    @classmethod
    def of(cls, differences: Iterable[Difference], goal: Goal) -> "Outcome":
        """The worst of some outputs; none is no pass."""
        found = list(differences)
        problem = next((item.problem for item in found if item.problem), "")
        return cls(
            passes=bool(found) and all(map(goal.met, found)),
            error=math.inf if problem else max((item.error_max for item in found), default=math.nan),
            snr=-math.inf if problem else min((item.snr for item in found), default=math.nan),
            overflowed=sum(item.overflowed for item in found),
            problem=problem,
        )

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        overflowed = f", {self.overflowed} elements overflowed" if self.overflowed else ""
        return f"error {self.error:.1e}, SNR {self.snr:.1f} dB{overflowed}"


@dataclass(frozen=True)
class Sensitivity:
    """What it costs to lower one node.

    Attributes:
        node: its name.
        op: its operator.
        module: the path of its module; None if not known.
        isolated: how far its results are off if it is lowered and is given what it should be; the worst one's.
        alone: how far the outputs are off if it is the only one that is lowered; None where that was not measured.
    """

    node: str
    op: str
    module: str | None
    isolated: Difference
    alone: Outcome | None = None

    @property
    def cost(self) -> tuple[float, ...]:
        """The sort key, highest cost first, by overflows, then noise in the outputs, then noise in its own value."""
        alone = (math.inf,) if self.alone is None else (float(-self.alone.overflowed), self.alone.snr)
        return (-float(self.alone is not None), *alone, -float(self.isolated.overflowed), self.isolated.snr)


@dataclass(frozen=True)
class PrecisionReport(Result):
    """What it costs to lower a program's precision, and which nodes have to be kept.

    Attributes:
        to: the precision.
        backend: what ran.
        goal: when an output is good enough.
        before: the outputs when every node is lowered.
        after: the outputs when the nodes in `keep` are kept; None if even all together they do not help.
        keep: the names of the nodes to keep in float32, in the order of the graph.
        without: for each of them, the outputs when it is lowered, too, and all others in `keep` are kept: each fails.
        best: the outputs when every node is kept, which is the best that can be had.
        order: all nodes that can be lowered, the one that costs most first.
        runs: how many programs were made and run to find that.
        notes: what else a reader has to know.
    """

    to: Precision
    backend: str
    goal: Goal
    before: Outcome
    after: Outcome | None
    keep: tuple[str, ...]
    without: Mapping[str, Outcome]
    best: Outcome
    order: tuple[Sensitivity, ...]
    runs: int
    notes: tuple[str, ...] = field(default=())

    @property
    def close(self) -> bool:
        """Whether the outputs are good enough when every node is lowered."""
        return self.before.passes

    def blocks(self, *, wide: bool = False) -> Iterable[Block]:
        """Return what each node costs (the ten that cost most unless it is `wide`), and which ones to keep."""
        yield f"{len(self.order)} nodes in {self.to} on {self.backend}; {self.runs} programs were run"
        yield from (f"note: {note}" for note in self.notes)
        yield from ("", _table(self.order if wide else self.order[:_SHOWN], wide=wide))
        if not wide and len(self.order) > _SHOWN:
            yield f"and {len(self.order) - _SHOWN} that cost less"
        yield from ("", *_verdict(self))

    def derived(self) -> Mapping[str, Any]:
        """Return whether the outputs are good enough when every node is lowered."""
        return {"filch_precision": 1, "close": self.close}


def _table(rows: tuple[Sensitivity, ...], *, wide: bool) -> Table:
    titles = ("node", "operator", "module", "own SNR", "overflow", "outputs' error", "SNR")
    fixed = ("own SNR", "overflow", "SNR")
    return Table(
        tuple(Column(title, "never" if title in fixed else "fold") for title in titles),
        tuple(_cells(row, wide=wide) for row in rows),
    )


def _cells(row: Sensitivity, *, wide: bool) -> tuple[str, ...]:
    names = (row.node, row.op.rpartition("::")[2], row.module or "")
    own = (_decibel(row.isolated.snr), str(row.isolated.overflowed or ""))
    outputs = ("", "") if row.alone is None else (cell_text(row.alone.error), _decibel(row.alone.snr))
    return (*(name if wide else abbreviated(name, _NARROW) for name in names), *own, *outputs)


def _decibel(snr: float) -> str:
    return f"{snr:.0f}"


def _verdict(report: PrecisionReport) -> list[str]:
    if report.close:
        return [f"no node has to be kept in float32: {report.before}; the goal is {report.goal}"]
    if report.after is None:
        return [f"no list of nodes helps: with all of them in float32, {report.best}; the goal is {report.goal}"]
    count = "this node is" if len(report.keep) == 1 else f"these {len(report.keep)} nodes are"
    lines = [f"all lowered: {report.before}", f"{count} kept in float32: {report.after}"]
    lines += [f"  {name}  (lowered too: {report.without[name]})" for name in report.keep]
    return [*lines, f"the goal is {report.goal}; without any of them it is missed"]
