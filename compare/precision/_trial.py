"""Runs programs of lower precision, and says whether their outputs are good enough."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from filch.export import Lowering, Program
from filch.export.backends import Backend
from filch.steal import Records

from ..common._errors import CompareError
from ..engine._modules import result_references
from ..metrics._metrics import Difference
from ..references._inputs import CapturedCall
from ..results._precision import Goal, Outcome


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
        calls: Sequence[CapturedCall],
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


def results_of(reference: Records, program: Program, calls: Sequence[CapturedCall]) -> list[dict[str, torch.Tensor]]:
    """What the model gave in each call, by the names of the program's outputs.

    Raises:
        CompareError: the model does not give as many tensors as the program.
    """
    graph = program.graph
    found = [{name: held.tensor for name, held in result_references(reference, graph, call).items()} for call in calls]
    if not all(found):
        raise CompareError(f"the program has {len(graph.outputs)} outputs, the model gives another number of tensors")
    return found
