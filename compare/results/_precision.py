"""The report on lower precision: the goal, the outcome of a run, and the cost of each node."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from filch.export import Precision

from ..common._errors import CompareError
from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import Tolerance, tolerance_for
from ..rendering._outcome import Proof
from ..rendering._result import NextCommand, Result
from ..rendering._table import Block, Column, Columns, fit_names, fit_paths, hidden_text, table_of

_SHOWN = 10  # nodes
_DEFAULT_SNR = 20.0  # decibel: noise with a tenth of the signal's amplitude
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Goal:
    """When an output is close enough: a tolerance or a signal-to-noise ratio.

    Attributes:
        tolerance: the tolerance of its elements; None if `snr` is the goal.
        snr: the least signal-to-noise ratio in decibel; None if `tolerance` is the goal.
    """

    tolerance: Tolerance | None = None
    snr: float | None = None

    @classmethod
    def of(cls, to: Precision, tolerance: float | Tolerance | None, snr: float | None) -> "Goal":
        """Return the goal that a user gave; by default the tolerance of float16 or bfloat16, and 20 dB for integers.

        Raises:
            CompareError: both are given, or `snr` is not finite.
        """
        if tolerance is not None and snr is not None:
            raise CompareError("the goal is a tolerance or an SNR, not both")
        if snr is not None and not math.isfinite(snr):
            raise CompareError(f"an SNR is a number of decibels, not {snr!r}")
        if tolerance is None and (snr is not None or to not in _DTYPES):
            return cls(snr=_DEFAULT_SNR if snr is None else snr)
        return cls(tolerance=tolerance_for(_DTYPES.get(to, torch.float32), tolerance))

    def measure(self, actual: torch.Tensor | None, expected: torch.Tensor | None) -> Difference:
        """Return the difference of an output from its reference."""
        return compare_tensors(actual, expected, tolerance=self.tolerance, lower_precision=True)

    def met(self, difference: Difference) -> bool:
        """Return whether a difference meets the goal; indices and other exact values must be equal."""
        if self.snr is None or difference.problem or difference.tolerance == Tolerance(0.0, 0.0):
            return difference.close
        return not difference.nonfinite and difference.snr >= self.snr

    def __str__(self) -> str:
        if self.tolerance is None:
            return f"an SNR of at least {self.snr:g} dB"
        return f"an error of at most {self.tolerance.harmonic:.1e}"


@dataclass(frozen=True)
class OutputDifferences:
    """The largest differences between the outputs of one program and the model's.

    Attributes:
        passes: whether every output meets the goal.
        error: the largest harmonic error.
        snr: the lowest signal-to-noise ratio, in decibel.
        overflowed: the number of elements that are NaN or infinite where the reference is not.
        problem: why an output can't be compared by numbers, or `""`.
    """

    passes: bool
    error: float
    snr: float
    overflowed: int = 0
    problem: str = ""

    @classmethod
    def of(cls, differences: Iterable[Difference], goal: Goal) -> "OutputDifferences":
        """Return the outcome of some outputs; without any it does not pass."""
        items = list(differences)
        problem = next((item.problem for item in items if item.problem), "")
        return cls(
            passes=bool(items) and all(map(goal.met, items)),
            error=math.inf if problem else max((item.error for item in items), default=math.nan),
            snr=-math.inf if problem else min((item.snr for item in items), default=math.nan),
            overflowed=sum(item.overflowed for item in items),
            problem=problem,
        )

    @property
    def proof(self) -> Proof:
        """One judgment: the program is wrong unless every output meets the goal, also if it can't be run."""
        return Proof(1, is_wrong=not self.passes)

    @classmethod
    def failed(cls, problem: str) -> "OutputDifferences":
        """Return the outcome of a program that can't be run."""
        return cls(passes=False, error=math.inf, snr=-math.inf, problem=problem)

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        overflowed = f", {self.overflowed} elements overflowed" if self.overflowed else ""
        return f"error {self.error:.1e}, SNR {self.snr:.1f} dB{overflowed}"


@dataclass(frozen=True)
class Sensitivity:
    """The error that lowering one node causes.

    Attributes:
        node: its name.
        op: its operator.
        module: the path of its module; None if not known.
        isolated: the largest difference of its outputs if it is lowered and gets the float32 program's values.
        alone: the outcome if only this node is lowered; None if not measured.
    """

    node: str
    op: str
    module: str | None
    isolated: Difference
    alone: OutputDifferences | None = None

    @property
    def cost(self) -> tuple[float, ...]:
        """The sort key, highest cost first, by overflows, then noise in the outputs, then noise in its own value."""
        alone = (math.inf,) if self.alone is None else (float(-self.alone.overflowed), self.alone.snr)
        return (-float(self.alone is not None), *alone, -float(self.isolated.overflowed), self.isolated.snr)


@dataclass(frozen=True, repr=False)
class PrecisionReport(Result):
    """The error of a program in lower precision, and the nodes that have to stay in float32.

    Attributes:
        to: the precision.
        backend: the name of the backend.
        goal: when an output is close enough.
        before: the outcome with every node lowered.
        after: the outcome with the nodes in `keep` kept; None if the goal is missed even with every node kept.
        keep: the names of the nodes to keep in float32, in the order of the graph.
        without: for each of them, the outcome if it is lowered too and the others in `keep` are kept: each fails.
        best: the outcome with every node kept, the best possible one.
        order: all nodes that can be lowered, highest cost first.
        runs: the number of programs that were compiled and run.
        notes: remarks for the reader.
    """

    to: Precision
    backend: str
    goal: Goal
    before: OutputDifferences
    after: OutputDifferences | None
    keep: tuple[str, ...]
    without: Mapping[str, OutputDifferences]
    best: OutputDifferences
    order: tuple[Sensitivity, ...]
    runs: int
    notes: tuple[str, ...] = field(default=())
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_precision": 1}

    @property
    def proof(self) -> Proof:
        """Whether the goal is met with every node lowered."""
        return self.before.proof

    @property
    def headline(self) -> str:
        """The number of nodes and of the programs that were run."""
        return f"{len(self.order)} nodes in {self.to} on {self.backend}; {self.runs} programs were run"

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:  # noqa: ARG002  nothing is cut
        """Return the cost of each node (only the ten highest unless `all_rows`), and the nodes to keep."""
        yield self.headline
        yield from (f"note: {note}" for note in self.notes)
        most = None if all_rows else _SHOWN
        yield from ("", table_of(_COLUMNS, self.order[:most]))
        yield from hidden_text(self.order, most, "that cost less")
        yield from ("", *_verdict_lines(self))

    @property
    def next_command(self) -> NextCommand:
        """The expression that lowers the program to the extent that meets the goal."""
        if self.after is None and not self.close:
            return NextCommand("compare(capture, program)", "find the error of the program in its own precision")
        keep = ", keep=report.keep" if self.keep else ""
        return NextCommand(f'lower(program, "{self.to}"{keep})', "lower the program to this precision, in Python")


_COLUMNS: Columns[Sensitivity] = {
    Column("node", fit_names, preferred=16): lambda row: row.node,
    Column("operator", fit_names, optional=1): lambda row: row.op.rpartition("::")[2],
    Column("module", fit_paths, least=12, preferred=16): lambda row: row.module,
    Column("own SNR", right=True): lambda row: f"{row.isolated.snr:.0f}",
    Column("overflow", right=True): lambda row: row.isolated.overflowed or None,
    Column("outputs' error", right=True): lambda row: row.alone and row.alone.error,
    Column("SNR", right=True): lambda row: row.alone and f"{row.alone.snr:.0f}",
}


def _verdict_lines(report: PrecisionReport) -> list[str]:
    """Return lines about the nodes that have to stay in float32 for the goal to be met."""
    if report.close:
        return [f"no node has to be kept in float32: {report.before}; the goal is {report.goal}"]
    if report.after is None:
        return [f"the goal is missed with every node in float32, too: {report.best}; the goal is {report.goal}"]
    count = "this node is" if len(report.keep) == 1 else f"these {len(report.keep)} nodes are"
    lines = [f"all lowered: {report.before}", f"{count} kept in float32: {report.after}"]
    lines += [f"  {name}  (lowered too: {report.without[name]})" for name in report.keep]
    return [*lines, f"the goal is {report.goal}; it is missed if any of them is lowered"]
