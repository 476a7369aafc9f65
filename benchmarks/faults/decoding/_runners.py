"""Faults of what runs a program step by step: it gives wrong inputs to the calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from faults._expressions import Names
from filch.export import Program
from filch.export.backends import Backend, Compiled, ReferenceLookup, get_backend

from ._programs import is_key

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class RunnerFault:
    """A fault of what runs a program.

    Attributes:
        model: the name of the model.
        kind: what is wrong.
        position: the first position with a wrong value; the fault begins there.
        of: the ends of the names of the inputs that are changed.
        becomes: what each becomes: an expression of the input `x`, of the same one in the call before, `before`, and
            of the `other` input if there are two.
        inputs: the names of the inputs that are wrong first.
        once: whether only one call is wrong.
        sequence: the first wrong sequence.
        cache: the kind of cache.
    """

    model: str
    kind: str
    position: int
    of: tuple[str, ...]
    becomes: str
    inputs: tuple[str, ...]
    once: bool = False
    sequence: int = 0
    cache: str = "dynamic"
    shows = None

    def __str__(self) -> str:
        return f"{self.model}, {self.cache}: {self.kind} (layer 0, from {self.position})"

    def wrong(self, inputs: Inputs, previous: Inputs) -> Inputs:
        """Return the inputs that are changed, given those of the call before."""
        names = [name for name in inputs if name.endswith(self.of)]
        return {
            name: Names(x=inputs[name], before=previous[name], other=inputs[other]).evaluate(self.becomes)
            for name, other in zip(names, reversed(names), strict=True)
        }


class Runner:
    """ONNX Runtime with a mistake in what it gives to the program, in calls with at least some tokens in the cache.

    Attributes:
        name: its name.
        stages: see `Backend`.
    """

    name = "faulty-runner"
    stages = get_backend("onnxruntime-cpu").stages

    def __init__(self, fault: RunnerFault | None = None) -> None:
        self.inner: Backend = get_backend("onnxruntime-cpu")
        self.fault = fault
        self._previous: dict[int, Inputs] = {}

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """Compile."""
        return self.inner.compile(program, optimize=optimize)

    def run(self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], watch: Collection[str] = ()) -> Inputs:
        """Run with wrong inputs."""
        return dict(self.inner.run(compiled, self.changed(inputs), watch))

    def observe(
        self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], **options: Any
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run with wrong inputs, and yield all values."""
        return self.inner.observe(compiled, self.changed(inputs), **options)

    def isolate(
        self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], references: ReferenceLookup, **options: Any
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run each node on references, and on wrong inputs."""
        return self.inner.isolate(compiled, self.changed(inputs), references, **options)

    def changed(self, inputs: Mapping[str, torch.Tensor]) -> Inputs:
        """Return the inputs that the program gets."""
        past, given = past_length(inputs), dict(inputs)
        self._previous[past] = given
        if self.fault is None or past < self.fault.position or inputs["input_ids"].shape[1] != 1:
            return given
        if self.fault.once and past != self.fault.position:
            return given
        return given | self.fault.wrong(given, self._previous.get(past - 1, given))


def past_length(inputs: Mapping[str, torch.Tensor]) -> int:
    """Return the number of tokens in the cache."""
    length = inputs.get("past_key_values.0.length")
    return next(x for name, x in inputs.items() if is_key(name)).shape[2] if length is None else int(length.max())
