"""Resolve the reference of each value of a graph."""

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
    """The expected tensor of one value.

    Attributes:
        tensor: the expected tensor.
        evidence: where it comes from (see `Row.evidence`).
    """

    tensor: torch.Tensor
    evidence: str


class References:
    """The references of a program's values, call by call.

    The input or output of a captured module is itself the reference. All other values of the exported program are
    computed from these in eager PyTorch. Values inside an operator's decomposition are computed by the decomposition
    from eager values, and used only if its output matches the eager value.

    Args:
        reference: the capture or dump.
        program: the program.
        wanted: the names of the exported graph's values that will be requested.
        buffer: the size in bytes of the cache of references.
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
        """Return the references of one call, to be requested in graph order.

        Args:
            call: the captured call.
            wanted: the names of the values that will be requested in this run.
        """
        captured = without_random(captured_values(self._reference, self._program, call), self._program.unpredictable)
        original = self._program.original
        if original is None or not self._is_reference(original, {**call.inputs, **captured}):
            return ReferenceResolver(self._given(call), captured, None)
        if self._derivation is None:
            sizes = value_sizes(original.graph, call.inputs)
            self._derivation = DecompositionReplay(original, self._wanted, sizes, self._buffer)
        computed = EagerReplay(original, self._derivation, call.inputs, captured, wanted, self._buffer)
        return ReferenceResolver(self._given(call), captured, computed, self._note)

    def _is_reference(self, original: Original, captured: Mapping[str, torch.Tensor]) -> bool:
        """Return whether the exported program can run, with at least the precision of the capture."""
        try:
            graph, _ = original.graph, original.names
        except ExportError as error:
            self._note(str(error))
            return False
        if self._lower_precision and cast_notes(graph, captured):
            self._note("the model was exported in a lower precision than captured: only modules are references")
            return False
        return True

    def _given(self, call: CapturedCall) -> dict[str, Reference]:
        """Return inputs and weights: compiled graphs and programs of lower precision store them in other forms."""
        weights = {name: self._weight(name) for name in self._wanted}
        held = {**call.inputs, **{name: tensor for name, tensor in weights.items() if tensor is not None}}
        return {name: Reference(complex_as_real(tensor), "given") for name, tensor in held.items()}

    def _weight(self, name: str) -> torch.Tensor | None:
        """Return a weight of the program; if the program lowered its precision, the exported weight."""
        held = self._program.constant(name)
        before = self._untouched.get(name)
        return before if before is not None and (held is None or held.dtype != before.dtype) else held

    @cached_property
    def _untouched(self) -> Mapping[str, torch.Tensor]:
        """The weights of the exported program, if lower precision is allowed, without folded ones.

        Optimizers that fold another weight into a weight keep its name, but remove the nodes that used it.
        """
        original = self._program.original
        if not self._lower_precision or original is None:
            return {}
        try:
            graph, exported = original.graph, Program(original.model)
        except ExportError:  # reported by `_is_reference`
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
    """References that are already computed, by name."""

    references: Mapping[str, Reference]

    def get(self, name: str) -> Reference | None:
        """Return the reference of a value, or None if it has none."""
        return self.references.get(name)

    def release(self, name: str) -> None:
        """Do nothing: these references are not cached."""


class ReferenceResolver:
    """The references of one call, by value name of the exported graph.

    Args:
        given: inputs and weights.
        captured: the inputs and outputs of modules.
        computed: the replay of the exported program; None if there is no such program.
        note: called with the message of an error in the replay.
    """

    def __init__(
        self,
        given: Mapping[str, Reference],
        captured: Mapping[str, torch.Tensor],
        computed: EagerReplay | None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._first = {**given, **{name: Reference(tensor, "module") for name, tensor in captured.items()}}
        self._last: Mapping[str, Reference] = {}
        self._computed = computed
        self._note = note

    @property
    def fully_cached(self) -> bool:
        """Whether all references are still available."""
        return self._computed is None or self._computed.fully_cached

    def set_preferred(self, references: Mapping[str, Reference]) -> None:
        """Prefer these references to all others."""
        self._first = {**self._first, **references}

    def set_fallback(self, references: Mapping[str, Reference]) -> None:
        """Use these references for values that have no other."""
        self._last = references

    def get(self, name: str) -> Reference | None:
        """Return the reference of a value, or None if it has none."""
        if name in self._first:
            return self._first[name]
        try:
            found = None if self._computed is None else self._computed.get(name)
        except ExportError as error:
            self._note(str(error))
            self._computed = found = None
        return self._last.get(name) if found is None else Reference(*found)

    def release(self, name: str) -> None:
        """Release one use of a value."""
        if self._computed is not None:
            self._computed.release(name)


def without_random(values: Mapping[str, T], unpredictable: Unpredictable) -> dict[str, T]:
    """Return the values that are deterministic."""
    return {name: value for name, value in values.items() if name not in unpredictable.all}


def captured_values(reference: Records, program: Program, call: CapturedCall) -> dict[str, torch.Tensor]:
    """Return the graph values that are inputs or outputs of the modules of a captured call, by name."""
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
    """Return the input tensors (by parameter) and output tensors (by path) of a captured module call."""
    args, kwargs = reference.borrow(Key(*record, "I"))
    output = Key(*record, "O")
    given = tensors(reference.borrow(output)) if output in reference else {}
    return argument_tensors(reference.modules[record[0]].parameters, args, kwargs), given
