"""When an error is there, and when it is gone."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from filch.export import Program
from filch.steal import Records, compact

from .._compare import BUFFER
from ..common._errors import CompareError
from ..metrics._limits import Limits
from ..metrics._metrics import Difference, bytes_of, compare_tensors
from ..precision._trial import results_of
from ..references._inputs import CapturedCall, cast_inputs
from ..references._references import References
from ..results._precision import Goal, Outcome

Values = Mapping[str, torch.Tensor]


class Criterion(Protocol):
    """What is run, and how it is judged."""

    @property
    def inputs(self) -> Sequence[Values]:
        """What the program is fed, call by call."""
        ...

    @property
    def watch(self) -> frozenset[str]:
        """Names of values of the exported graph to be shown besides its outputs."""
        ...

    def judge(self, found: Sequence[Values]) -> Outcome:
        """What the values of each call, by their names in the exported graph, are like."""
        ...

    def identity(self) -> str:
        """What is the same only for a criterion that judges alike."""
        ...


@dataclass(frozen=True)
class AgainstModel:
    """Values are held against what the model had.

    Attributes:
        inputs: see `Criterion`.
        watch: likewise.
        expected: for each call, what the values should be.
        limits: how far each may be off.
    """

    inputs: Sequence[Values]
    watch: frozenset[str]
    expected: Sequence[Values]
    limits: Limits

    def judge(self, found: Sequence[Values]) -> Outcome:
        """See `Criterion.judge`."""
        return Outcome.of(self._differences(found), Goal())

    def identity(self) -> str:
        """See `Criterion.identity`: the numbers, given and expected, and the limits."""
        told = hashlib.sha256()
        for values in (*self.inputs, *self.expected):
            for name, tensor in values.items():
                told.update(
                    f"{name} {tensor.dtype} {tuple(tensor.shape)} {self.limits.of(name, tensor.dtype)}".encode()
                )
                told.update(bytes_of(compact(tensor)).cpu().numpy().tobytes())
        return told.hexdigest()[:16]

    def _differences(self, found: Sequence[Values]) -> Iterator[Difference]:
        for expected, values in zip(self.expected, found, strict=True):
            for name, tensor in expected.items():
                actual = values.get(name)
                limit = self.limits.of(name, None if actual is None else actual.dtype)
                yield compare_tensors(tensor, actual, tolerance=limit, lower_precision=self.limits.lower_precision)


def against_model(
    reference: Records, program: Program, calls: Sequence[CapturedCall], limits: Limits, value: str | None
) -> AgainstModel:
    """The outputs, or one value, held against what the model had.

    Raises:
        CompareError: there is no such value, or nothing says what it should be.
    """
    inputs = [cast_inputs(program.graph, call.inputs) if limits.lower_precision else call.inputs for call in calls]
    if value is None:
        return AgainstModel(inputs, frozenset(), results_of(reference, program, calls), limits)
    if value not in program.graph.producer:
        raise CompareError(f"the program has no node that makes a value {value!r}; `filch show` lists them")
    return AgainstModel(inputs, frozenset({value}), list(_expected(reference, program, calls, limits, value)), limits)


def _expected(
    reference: Records, program: Program, calls: Iterable[CapturedCall], limits: Limits, value: str
) -> Iterator[Values]:
    lower = limits.lower_precision
    references = References(reference, program, wanted={value}, buffer=BUFFER, lower_precision=lower)
    for call in calls:
        found = references.of(call, {value}).get(value)
        if found is None:
            raise CompareError(f"nothing says what {value!r} should be: it is no module's result, and has no reference")
        yield {value: found.tensor}
