"""Run programs of lower precision, and judge their outputs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from filch.export import Program
from filch.export.backends import Backend
from filch.export.lowering._lower import Lowering
from filch.steal import Records

from ..common._errors import CompareError
from ..metrics._metrics import Difference
from ..references._inputs import CapturedCall
from ..references._references import captured_results, result_references
from ..results._precision import Goal, OutputDifferences


@dataclass
class Trial:
    """Runs one program in one precision with different lists of nodes kept in float32.

    Attributes:
        calls: the captured calls of the model.
        expected: the outputs of each call, by name (see `expected_outputs`).
        lowering: makes the programs of lower precision.
        backend: the backend that runs them.
        goal: when the outputs are close enough.
    """

    calls: Sequence[CapturedCall]
    expected: Sequence[Mapping[str, torch.Tensor]]
    lowering: Lowering
    backend: Backend
    goal: Goal
    _outcomes: dict[frozenset[str], OutputDifferences] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """The number of programs that were compiled and run."""
        return len(self._outcomes)

    def keeping(self, keep: Collection[str]) -> OutputDifferences:
        """Return the outcome with these nodes kept in float32."""
        kept = frozenset(keep)
        if kept not in self._outcomes:
            self._outcomes[kept] = OutputDifferences.of(self._differences(kept), self.goal)
        return self._outcomes[kept]

    def _differences(self, keep: frozenset[str]) -> Iterator[Difference]:
        """Run the program in all calls, and yield the difference of each output in each of them."""
        compiled = self.backend.compile(self.lowering.keeping(keep), optimize="compiled" in self.backend.stages)
        for call, expected in zip(self.calls, self.expected, strict=True):
            actual: Mapping[str, torch.Tensor] = self.backend.run(compiled, call.inputs)
            yield from (self.goal.measure(actual.get(name), tensor) for name, tensor in expected.items())


def expected_outputs(
    reference: Records, program: Program, calls: Sequence[CapturedCall]
) -> list[dict[str, torch.Tensor]]:
    """Return the model's outputs in each call, by the names of the program's outputs.

    Raises:
        CompareError: the model returns another number of tensors than the program.
    """
    graph = program.graph
    references = [result_references(captured_results(reference, call), graph) for call in calls]
    outputs = [{name: output.tensor for name, output in item.items()} for item in references]
    if not all(outputs):
        raise CompareError(f"the program has {len(graph.outputs)} outputs, the model returns another number of tensors")
    return outputs
