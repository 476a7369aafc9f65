"""Runs programs of lower precision, and says whether their outputs are good enough."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from filch.export import Lowering, Precision, Program
from filch.export.backends import Backend
from filch.steal import Records

from ..common._errors import CompareError
from ..engine._modules import result_references
from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import Tolerance, tolerance_for
from ..references._inputs import StolenCall

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


class Trial:
    """One program in one precision, to be run with one list of kept nodes after the other.

    Args:
        calls: the stolen calls of the model.
        expected: for each of them, the outputs that the model gave, by name (see `results_of`).
        lowering: makes the programs of lower precision.
        backend: what runs them.
        goal: what is good enough.
    """

    def __init__(
        self,
        calls: Sequence[StolenCall],
        expected: Sequence[Mapping[str, torch.Tensor]],
        lowering: Lowering,
        *,
        backend: Backend,
        goal: Goal,
    ) -> None:
        self._expected = expected
        self.nodes = lowering.nodes
        self._lowering = lowering
        self._backend = backend
        self._goal = goal
        self._calls = calls
        self._known: dict[frozenset[str], Outcome] = {}

    @property
    def runs(self) -> int:
        """How many programs were made and run."""
        return len(self._known)

    def keeping(self, keep: Collection[str]) -> Outcome:
        """What the outputs are like if these nodes stay in float32."""
        kept = frozenset(keep)
        if kept not in self._known:
            self._known[kept] = Outcome.of(self._differences(kept), self._goal)
        return self._known[kept]

    def _differences(self, keep: frozenset[str]) -> Iterator[Difference]:
        made = self._backend.compile(self._lowering.keeping(keep), optimize="compiled" in self._backend.stages)
        for call, expected in zip(self._calls, self._expected, strict=True):
            found: Mapping[str, torch.Tensor] = self._backend.run(made, call.inputs)
            yield from (self._goal.measure(tensor, found.get(name)) for name, tensor in expected.items())


def results_of(reference: Records, program: Program, calls: Sequence[StolenCall]) -> list[dict[str, torch.Tensor]]:
    """What the model gave in each call, by the names of the program's outputs.

    Raises:
        CompareError: the model does not give as many tensors as the program.
    """
    graph = program.graph
    found = [{name: held.tensor for name, held in result_references(reference, graph, call).items()} for call in calls]
    if not all(found):
        raise CompareError(f"the program has {len(graph.outputs)} outputs, the model gives another number of tensors")
    return found
