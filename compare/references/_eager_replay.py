"""What the exported program computes for one call, value by value."""

from collections import Counter
from collections.abc import Collection, Mapping

import torch

from filch.export import Original

from ..common._complex import complex_as_real
from ..common._value_cache import ValueCache
from ._decomposition_replay import DecompositionReplay, Group

SourcedTensor = tuple[torch.Tensor, str]


class EagerReplay:
    """The values of an exported program in eager PyTorch, and of its operations' translations, as they are asked for.

    They are to be asked for in the order of the program, more or less: what was passed is held until it is done with,
    or for as long as all of it fits the buffer.

    Args:
        original: the exported program.
        derivation: what computes the values inside of translations.
        inputs: what the program is fed, by name.
        stolen: values that the model's modules took and gave, by name: they are not computed again.
        wanted: the names of the values that may be asked for.
        buffer: bytes that may be held.
    """

    def __init__(  # noqa: PLR0917  made in one place
        self,
        original: Original,
        derivation: DecompositionReplay,
        inputs: Mapping[str, torch.Tensor],
        stolen: Mapping[str, torch.Tensor],
        wanted: Collection[str],
        buffer: int,
    ) -> None:
        self._places = {name: place for place, name in enumerate(original.names)}
        self._derivation = derivation
        self._pending = {group for name in wanted if (group := derivation.group_of(name)) is not None}
        uses = Counter(need for group in self._pending for need in group.needs)
        self._eager = original.walk(inputs, known=stolen, wanted={*wanted, *uses})
        self._passed = -1
        self._inputs = inputs
        self._cache = ValueCache[SourcedTensor](uses, wanted, buffer=buffer)

    @property
    def fully_cached(self) -> bool:
        """Whether all that was computed is held still."""
        return self._cache.fully_cached

    def get(self, name: str) -> SourcedTensor | None:
        """The value of this name, and how it is known: `eager` or `derived`; None if it is not."""
        if name in self._places:
            self._advance(self._places[name])
        elif (group := self._derivation.group_of(name)) in self._pending:
            self._derive(group)
        return self._cache.values.get(name)

    def release(self, name: str) -> None:
        """Say that a value will not be asked for again: it may be let go."""
        self._cache.release(name)

    def _advance(self, place: int) -> None:
        while self._passed < place:
            name, value = next(self._eager, ("", None))
            if value is None:
                self._passed = len(self._places)
                return
            self._passed = self._places[name]
            self._hold(name, complex_as_real(value), "eager")

    def _derive(self, group: Group) -> None:
        self._pending.discard(group)
        self._advance(max((self._places[need] for need in group.needs if need in self._places), default=-1))
        held = self._cache.values
        known = {need: held[need][0] for need in group.needs if need in held}
        for name, tensor in self._derivation.run(group, {**self._inputs, **known}).items():
            if self._cache.needs(name):
                self._hold(name, tensor, "derived")
        self._cache.consume(group.needs)

    def _hold(self, name: str, tensor: torch.Tensor, evidence: str) -> None:
        self._cache.put(name, (tensor, evidence), tensor.nbytes)
