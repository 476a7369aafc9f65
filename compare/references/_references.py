"""What the values of a graph should be."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch

from filch.export import ExportError, Original, Program, Unpredictable, value_sizes
from filch.steal import Key, Records, argument_tensors, tensors

from ..common._complex import complex_as_real
from ._decomposition_replay import DecompositionReplay
from ._eager_replay import EagerReplay
from ._inputs import CapturedCall, cast_notes

T = TypeVar("T")


@dataclass(frozen=True)
class Reference:
    """What one value should be.

    Attributes:
        tensor: its numbers.
        evidence: where they are from (see `Row.evidence`).
    """

    tensor: torch.Tensor
    evidence: str


class References:
    """Where the reference values of one program come from, for one call after the other.

    A value that a stolen module took or gave is what the module had. The other values of the exported program are
    computed from these by it in eager PyTorch. What an operation's translation has inside is computed by that
    translation, from eager's values, and only believed if it ends at eager's value again.

    Args:
        reference: the capture or dump.
        program: the program.
        wanted: the names of the exported graph's values that will be asked for.
        buffer: bytes of reference values that may be held at a time.
        lower_precision: see `compare`.
    """

    def __init__(
        self,
        reference: Records,
        program: Program,
        *,
        wanted: Collection[str],
        buffer: int,
        lower_precision: bool = False,
    ) -> None:
        self._reference = reference
        self._program = program
        self._wanted = wanted
        self._buffer = buffer
        self._lower_precision = lower_precision
        self._derivation: DecompositionReplay | None = None
        self.notes: list[str] = []
        if program.missing:
            self._note(f"{program.missing!r} is not beside the ONNX file: only modules have reference values")

    def of(self, call: CapturedCall, wanted: Collection[str]) -> "ReferenceResolver":
        """The reference values of one call, to be asked for in the order of the graph.

        Args:
            call: which one.
            wanted: the names of those that will be asked for this time.
        """
        stolen = without_random(captured_values(self._reference, self._program, call), self._program.unpredictable)
        original = self._program.original
        if original is None or not self._is_reference(original, {**call.inputs, **stolen}):
            return ReferenceResolver(self._given(call), stolen, None)
        if self._derivation is None:
            sizes = value_sizes(original.graph, call.inputs)
            self._derivation = DecompositionReplay(original, self._wanted, sizes, self._buffer)
        computed = EagerReplay(original, self._derivation, call.inputs, stolen, wanted, self._buffer)
        return ReferenceResolver(self._given(call), stolen, computed, self._note)

    def _is_reference(self, original: Original, stolen: Mapping[str, torch.Tensor]) -> bool:
        """Whether the exported program can be run, and is as precise as what was stolen."""
        try:
            graph, _ = original.graph, original.names
        except ExportError as error:
            self._note(str(error))
            return False
        if self._lower_precision and cast_notes(graph, stolen):
            self._note("the model was exported in a lower precision than it was stolen in: only modules are references")
            return False
        return True

    def _given(self, call: CapturedCall) -> dict[str, Reference]:
        """Inputs and weights: compiled graphs, and programs of lower precision, hold them in other forms."""
        weights = {name: self._weight(name) for name in self._wanted}
        held = {**call.inputs, **{name: tensor for name, tensor in weights.items() if tensor is not None}}
        return {name: Reference(complex_as_real(tensor), "given") for name, tensor in held.items()}

    def _weight(self, name: str) -> torch.Tensor | None:
        """A weight as the program has it; where that is in a lower precision, as the exported program had it."""
        held = self._program.constant(name)
        before = self._untouched.get(name)
        return before if before is not None and (held is None or held.dtype != before.dtype) else held

    @cached_property
    def _untouched(self) -> Mapping[str, torch.Tensor]:
        """The weights of the exported program, if a lower precision is allowed: without those that others went into.

        Optimisers call a weight into which they have multiplied another one by its old name, but what used it is gone.
        """
        original = self._program.original
        if not self._lower_precision or original is None:
            return {}
        try:
            graph, exported = original.graph, Program(original.model)
        except ExportError:  # which is noted elsewhere
            return {}
        known = self._program.graph.known
        kept = (
            name
            for name in graph.constants
            if name in self._wanted
            and all(made in known for user in graph.consumers.get(name, ()) for made in user.outputs)
        )
        return {name: tensor for name in kept if (tensor := exported.constant(name)) is not None}

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class StaticReferences:
    """References that are all there already, by name."""

    references: Mapping[str, Reference]

    def get(self, name: str) -> Reference | None:
        """What the value of this name should be; None if nothing says it."""
        return self.references.get(name)

    def release(self, name: str) -> None:
        """Nothing to let go of."""


class ReferenceResolver:
    """What the values of one call should be, by the names of the exported graph.

    Args:
        given: inputs and weights.
        stolen: what modules took and gave.
        computed: what the exported program computes; None if there is none.
        note: called with what went wrong while it was computed.
    """

    def __init__(
        self,
        given: Mapping[str, Reference],
        stolen: Mapping[str, torch.Tensor],
        computed: EagerReplay | None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._first = {**given, **{name: Reference(tensor, "module") for name, tensor in stolen.items()}}
        self._last: Mapping[str, Reference] = {}
        self._computed = computed
        self._note = note

    @property
    def fully_cached(self) -> bool:
        """Whether nothing was let go, so that all can be asked for again."""
        return self._computed is None or self._computed.fully_cached

    def set_preferred(self, references: Mapping[str, Reference]) -> None:
        """Let these references go before all others."""
        self._first = {**self._first, **references}

    def set_fallback(self, references: Mapping[str, Reference]) -> None:
        """Let these references stand for what there is no other of."""
        self._last = references

    def get(self, name: str) -> Reference | None:
        """What the value of this name should be; None if nothing says it."""
        if name in self._first:
            return self._first[name]
        try:
            found = None if self._computed is None else self._computed.get(name)
        except ExportError as error:
            self._note(str(error))
            self._computed = found = None
        return self._last.get(name) if found is None else Reference(*found)

    def release(self, name: str) -> None:
        """Say that a value will not be asked for again in this run: it may be let go."""
        if self._computed is not None:
            self._computed.release(name)


def without_random(values: Mapping[str, T], unpredictable: Unpredictable) -> dict[str, T]:
    """The values on which another run has to agree."""
    return {name: value for name, value in values.items() if name not in unpredictable.all}


def captured_values(reference: Records, program: Program, call: CapturedCall) -> dict[str, torch.Tensor]:
    """The values of the graph that the modules of a stolen call took or gave, by name."""
    found: dict[str, torch.Tensor] = {}
    for key, record in call.keys.items():
        if key not in program.module_calls:
            continue
        module_call = program.module_calls[key]
        taken, given = captured_tensors(reference, record)
        for ports, held in ((module_call.inputs, taken), (module_call.outputs, given)):
            for port in ports:
                if port.value is not None and port.path in held:
                    found[port.value] = complex_as_real(held[port.path])
    return {name: tensor for name, tensor in found.items() if name not in call.inputs}


def captured_tensors(
    reference: Records, record: tuple[str, int]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What a stolen call took (by parameter) and gave (by place)."""
    args, kwargs = reference.borrow(Key(*record, "I"))
    output = Key(*record, "O")
    given = tensors(reference.borrow(output)) if output in reference else {}
    return argument_tensors(reference.modules[record[0]].parameters, args, kwargs), given
