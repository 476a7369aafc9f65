"""Decide whether the results of a run show the error."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from filch.export import Program
from filch.steal import Records
from filch.steal.values._tensors import unexpand

from .._compare import BUFFER
from ..common._errors import CompareError
from ..metrics._limits import Limits
from ..metrics._metrics import Difference, bytes_of, compare_tensors
from ..precision._trial import expected_outputs
from ..references._inputs import CapturedCall, cast_inputs
from ..references._references import References
from ..results._precision import Goal, OutputDifferences

Values = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Criterion:
    """The inputs of a run, and the values of the model that its results should have.

    Attributes:
        inputs: the inputs of the program, call by call.
        watch: the names of values of the exported graph to read besides its outputs.
        expected: the expected values of each call.
        limits: the tolerance of each value.
    """

    inputs: Sequence[Values]
    watch: frozenset[str]
    expected: Sequence[Values]
    limits: Limits

    def judge(self, results: Sequence[Values]) -> OutputDifferences:
        """Judge the values of each call, given by their names in the exported graph."""
        return OutputDifferences.of(self._differences(results), Goal())

    def identity(self) -> str:
        """Return a hash of the inputs, the expected values and the limits, equal only for criteria that judge alike."""
        digest = hashlib.sha256()
        for values in (*self.inputs, *self.expected):
            for name, tensor in values.items():
                limit = self.limits.of(name, tensor.dtype)
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {limit}".encode())
                digest.update(bytes_of(unexpand(tensor)).cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def _differences(self, results: Sequence[Values]) -> Iterator[Difference]:
        for expected, values in zip(self.expected, results, strict=True):
            for name, tensor in expected.items():
                actual = values.get(name)
                limit = self.limits.of(name, None if actual is None else actual.dtype)
                yield compare_tensors(actual, tensor, tolerance=limit, lower_precision=self.limits.lower_precision)


def make_criterion(
    reference: Records, program: Program, calls: Sequence[CapturedCall], limits: Limits, value: str | None
) -> Criterion:
    """Return the criterion that compares the outputs, or one value, with the model's.

    Raises:
        CompareError: there is no such value, or it has no reference.
    """
    inputs = [cast_inputs(program.graph, call.inputs) if limits.lower_precision else call.inputs for call in calls]
    if value is None:
        return Criterion(inputs, frozenset(), expected_outputs(reference, program, calls), limits)
    if value not in program.graph.producer:
        raise CompareError(f"no node of the program computes a value {value!r}; `filch show` lists them")
    lower = limits.lower_precision
    references = References(reference, program, wanted={value}, buffer=BUFFER, lower_precision=lower)
    expected: list[Values] = []
    for call in calls:
        known = references.of(call, {value}).get(value)
        if known is None:
            raise CompareError(f"{value!r} has no reference: it is not a module's output and can't be recomputed")
        expected.append({value: known.tensor})
    return Criterion(inputs, frozenset({value}), expected, limits)
