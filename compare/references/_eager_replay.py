"""Compute reference values of one call by replaying the exported program in eager PyTorch."""

from collections import Counter
from collections.abc import Collection, Mapping

import torch

from filch.export import Original

from ..common._complex import complex_as_real
from ..common._value_cache import ValueCache
from ._decomposition_replay import DecompositionReplay, Group

SourcedTensor = tuple[torch.Tensor, str]


class EagerReplay:
    """Compute the values of an exported program in eager PyTorch, and those inside operator decompositions, on demand.

    Request values roughly in program order. A computed value stays in memory until it is released, or as long as all
    values fit in the buffer.

    Args:
        original: the exported program.
        derivation: computes the values inside operator decompositions.
        inputs: the inputs of the program, by name.
        captured: inputs and outputs of the model's modules, by value name; they are not recomputed.
        wanted: the names of the values that may be requested.
        buffer: the size of the cache in bytes.
    """

    def __init__(  # noqa: PLR0917  made in one place
        self,
        original: Original,
        derivation: DecompositionReplay,
        inputs: Mapping[str, torch.Tensor],
        captured: Mapping[str, torch.Tensor],
        wanted: Collection[str],
        buffer: int,
    ) -> None:
        self._places = {name: place for place, name in enumerate(original.names)}
        self._derivation = derivation
        self._pending = {group for name in wanted if (group := derivation.group_of(name)) is not None}
        uses = Counter(need for group in self._pending for need in group.needs)
        self._eager = original.walk(inputs, known=captured, wanted={*wanted, *uses})
        self._passed = -1
        self._inputs = inputs
        self._cache = ValueCache[SourcedTensor](uses, wanted, buffer=buffer)

    @property
    def fully_cached(self) -> bool:
        """Whether all computed values are still in memory."""
        return self._cache.fully_cached

    def get(self, name: str) -> SourcedTensor | None:
        """Return a value and its evidence, `eager` or `derived`; None if it is unknown."""
        if name in self._places:
            self._advance(self._places[name])
        elif (group := self._derivation.group_of(name)) in self._pending:
            self._derive(group)
        return self._cache.values.get(name)

    def release(self, name: str) -> None:
        """Release one use of a value."""
        self._cache.release(name)

    def _advance(self, place: int) -> None:
        while self._passed < place:
            name, value = next(self._eager, ("", None))
            if value is None:
                self._passed = len(self._places)
                return
            self._passed = self._places[name]
            self._store(name, complex_as_real(value), "eager")

    def _derive(self, group: Group) -> None:
        self._pending.discard(group)
        self._advance(max((self._places[need] for need in group.needs if need in self._places), default=-1))
        cached = self._cache.values
        known = {need: cached[need][0] for need in group.needs if need in cached}
        for name, tensor in self._derivation.run(group, {**self._inputs, **known}).items():
            if self._cache.needs(name):
                self._store(name, tensor, "derived")
        self._cache.consume(group.needs)

    def _store(self, name: str, tensor: torch.Tensor, evidence: str) -> None:
        self._cache.put(name, (tensor, evidence), tensor.nbytes)
