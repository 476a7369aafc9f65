"""Resolve the references of one call: known tensors, and those computed by replaying the exported program."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from filch.export import ExportError, Original

from ..common._complex import complex_as_real
from ..common._value_cache import ValueCache
from ._decomposition_replay import DecompositionGroup, DecompositionReplay


@dataclass(frozen=True)
class Reference:
    """The expected tensor of one value.

    Attributes:
        tensor: the expected tensor.
        evidence: where it comes from (see `Row.evidence`).
    """

    tensor: torch.Tensor
    evidence: str


class ReferenceResolver:
    """The references of one call, by value name of the exported graph.

    Args:
        known: references that precede computed ones.
    """

    def __init__(self, known: Mapping[str, Reference]) -> None:
        self._known = {**known}
        self._fallback: Mapping[str, Reference] = {}

    @property
    def fully_cached(self) -> bool:
        """Whether all references are still available."""
        return True

    def set_preferred(self, references: Mapping[str, Reference]) -> None:
        """Prefer these references to all others."""
        self._known |= references

    def set_fallback(self, references: Mapping[str, Reference]) -> None:
        """Use these references for values that have no other."""
        self._fallback = references

    def get(self, name: str) -> Reference | None:
        """Return the reference of a value, or None if it has none."""
        return self._known.get(name) or self._compute(name) or self._fallback.get(name)

    def release(self, name: str) -> None:
        """Declare that the reference of a value will not be requested again."""

    def _compute(self, name: str) -> Reference | None:  # noqa: ARG002  subclasses use it
        """Return a reference that was not known before; None if it can't be computed."""
        return None


class EagerReplay(ReferenceResolver):
    """Compute references in eager PyTorch, and those inside operator decompositions, on demand.

    Request values roughly in program order. A computed value stays in memory until it is released, or as long as all
    values fit in the buffer.

    Args:
        known: see `ReferenceResolver`.
        original: the exported program.
        decompositions: computes the values inside operator decompositions.
        inputs: the inputs of the program, by name.
        captured: inputs and outputs of the model's modules, by value name; they are not recomputed.
        transposed: computes each value that is a transposed weight, by name; they are not cached.
        wanted: the names of the values that may be requested.
        buffer: the size of the cache in bytes.
        note: called with the message of an error, after which nothing more is computed.
    """

    def __init__(  # noqa: PLR0917  called in one place
        self,
        known: Mapping[str, Reference],
        original: Original,
        decompositions: DecompositionReplay,
        inputs: Mapping[str, torch.Tensor],
        captured: Mapping[str, torch.Tensor],
        transposed: Mapping[str, Callable[[], torch.Tensor | None]],
        wanted: Collection[str],
        buffer: int,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(known)
        self._positions = {name: position for position, name in enumerate(original.names)}
        self._decompositions = decompositions
        self._pending = {group for name in wanted if (group := decompositions.group_of(name)) is not None}
        uses = Counter(need for group in self._pending for need in group.needs)  # of eager values in decompositions
        self._walk = original.walk(inputs, known=captured, wanted={*wanted, *uses})
        self._last_position = -1
        self._inputs, self._transposed = inputs, transposed
        self._cache = ValueCache[Reference](uses, wanted, buffer=buffer)
        self._note = note

    @property
    def fully_cached(self) -> bool:
        """Whether all references are still available."""
        return self._cache.fully_cached

    def release(self, name: str) -> None:
        """Declare that the reference of a value will not be requested again."""
        self._cache.release(name)

    def _compute(self, name: str) -> Reference | None:
        """Return a value that eager PyTorch, a decomposition or the order of a weight's dimensions gives."""
        if name in self._transposed:
            tensor = self._transposed[name]()
            return None if tensor is None else Reference(tensor, "derived")
        try:
            if name in self._positions:
                self._advance(self._positions[name])
            elif (group := self._decompositions.group_of(name)) is not None and group in self._pending:
                self._run_decompositions(group)
        except ExportError as error:
            self._note(str(error))
            self._walk, self._pending = iter(()), set()
            self._cache = ValueCache[Reference]({}, buffer=math.inf)
        return self._cache.values.get(name)

    def _advance(self, position: int) -> None:
        """Run the exported program up to the value with this index in its order, and store each value on the way."""
        while self._last_position < position:
            name, value = next(self._walk, ("", None))
            if value is None:  # nothing is left: no request advances any more
                self._last_position = len(self._positions)
                return
            self._last_position = self._positions[name]
            self._store(name, complex_as_real(value), "eager")

    def _run_decompositions(self, group: DecompositionGroup) -> None:
        """Compute the values of a group of decompositions, after the eager values that it needs."""
        self._pending.discard(group)
        self._advance(max((self._positions[need] for need in group.needs if need in self._positions), default=-1))
        cached = self._cache.values
        eager = {need: cached[need].tensor for need in group.needs if need in cached}
        for name, tensor in self._decompositions.run(group, {**self._inputs, **eager}).items():
            if self._cache.needs(name):
                self._store(name, tensor, "derived")
        self._cache.consume(group.needs)

    def _store(self, name: str, tensor: torch.Tensor, evidence: str) -> None:
        """Keep a reference until its last use."""
        self._cache.put(name, Reference(tensor, evidence), tensor.nbytes)
