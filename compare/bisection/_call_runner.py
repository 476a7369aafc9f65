"""Run a call of `torch.compile` with some steps of the compiler turned off."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx

from filch.export.backends import CompiledVariant, Switch, SwitchesTorch
from filch.steal import phase

from ..common._errors import reason_of
from ..dynamo._compiled_call import CompiledCall
from ..metrics._metrics import compare_tensors
from ..metrics._tolerance import Tolerance
from ..results._bisection import Step
from ..results._precision import Goal, OutputDifferences


@dataclass
class CallRunner:
    """Runs a call with different sets of a compiler's steps turned off.

    Attributes:
        call: the call.
        backend: compiles its graphs.
        tolerance: what the results may differ by; None depends on the dtype.
    """

    call: CompiledCall
    backend: SwitchesTorch
    tolerance: float | Tolerance | None
    steps: dict[frozenset[Switch], Step] = field(default_factory=dict)

    @cached_property
    def _expected(self) -> dict[str, torch.Tensor]:
        return self.call.values_of(self.call.subject.model)

    def without(self, off: Collection[Switch]) -> Step:
        """Compile and run the call with some steps turned off; one that fails does not pass."""
        key = frozenset(off)
        if key not in self.steps:
            with phase(f"run {len(self.steps) + 1} with {len(key)} steps off"):
                self.steps[key] = self._run(tuple(off))
        return self.steps[key]

    def _run(self, off: tuple[Switch, ...]) -> Step:
        variants: list[CompiledVariant] = []

        def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            variants.append(self.backend.compile_graph_without(module, inputs, off))
            return variants[-1].compiled.handle

        torch.compiler.reset()  # it stops compiling after a number of variants
        try:
            actual = self.call.values_of(torch.compile(self.call.subject.model, backend=compiler))
        except Exception as error:  # noqa: BLE001  Dynamo and compilers raise errors of all types
            return Step(off, OutputDifferences.failed(reason_of(error)))
        differences = (
            compare_tensors(actual.get(name), tensor, tolerance=self.tolerance)
            for name, tensor in self._expected.items()
        )
        return Step(
            off,
            OutputDifferences.of(differences, Goal()),
            " ".join(variant.fingerprint for variant in variants),
            dict(sorted(Counter(node.op for variant in variants for node in variant.compiled.graph.nodes).items())),
            tuple(dict.fromkeys(switch for variant in variants for switch in variant.switches)),
        )
