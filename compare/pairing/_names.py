"""Pair values of the same name.

`Pairing` says which values are harmless or settled, and which values of the reference, the sources, are free.
"""

from ._numbers import SameNumbers
from ._paired_value import PairedValue
from ._pairing import ComputedValue, Pairing

_ROUNDED = 1e-3  # root mean square of what rounding changes, relative to that of the numbers; in float16, too


class SameName:
    """Pair values of the same name.

    Args:
        pairing: the pairs that were found so far.
        numbers: the values of the reference by their numbers.
    """

    def __init__(self, pairing: Pairing, numbers: SameNumbers) -> None:
        self._pairing, self._numbers = pairing, numbers
        self._actual, self._reference = pairing.actual, pairing.reference

    def pair_similar(self) -> None:
        """Pair all values of the same name that have similar numbers, before others that may have the same numbers.

        A value that has the numbers of a later one of the reference is that one (see `later`).
        Values that were paired by something else keep their pairs.
        """
        pairing, coarse = self._pairing, list[ComputedValue]()
        for node in self._actual.graph.nodes:
            for index, name in enumerate(node.outputs):
                source = pairing.source(name) or name
                if source not in self._reference.graph.known or pairing.evidence(name) not in (None, "given"):
                    continue
                difference = pairing.similarity(name, source)
                if difference.close:
                    pairing.add(PairedValue(name, (source,), "name"))
                    if difference.rms > _ROUNDED and name in self._actual.values:  # maybe a later one
                        coarse.append(ComputedValue(name, node, index, self._actual.values[name]))
        for value in coarse:
            if value.name not in self._actual.graph.outputs and (pair := self.later(value)) is not None:
                pairing.forget(value.name)
                pairing.add(pair)

    def is_kept(self, name: str) -> bool:
        """Whether a value can only be the one of its name, or a later one: one program was made from the other."""
        return self._pairing.names_are_kept and name in self._reference.graph.producer

    def later(self, value: ComputedValue) -> PairedValue | None:
        """Pair a value with the one of nearly the same numbers that the reference computes from that of its name.

        Optimizers fold what follows a product into its weights, and keep the name of its result. If the later value is
        there as well, it is computed twice.
        """
        source, graph = self._numbers.find(value.tensor), self._reference.graph
        if source is None or source in self._actual.graph.producer or not self._pairing.is_free(source):
            return None
        if not any(value.name in item.reads for item in graph.cone([source], {value.name})):
            return None
        return PairedValue(value.name, (source,), self._numbers.evidence(value.node, source))

    def kept(self, value: ComputedValue) -> PairedValue | None:
        """Pair a value that is kept, whatever its numbers are."""
        name = value.name
        return PairedValue(name, (name,), "name") if name not in self._pairing.harmless and self.is_kept(name) else None

    def with_same_origin(self, value: ComputedValue) -> PairedValue | None:
        """Pair a value whatever its numbers are, if that of its name depends on nothing but what it depends on.

        This is asked of the sources of the nearest paired values before it: the reference computes the value of its
        name from no other input.
        """
        pairing, name = self._pairing, value.name
        if name in pairing.harmless or not pairing.is_free(name):
            return None
        paired = {item for item in pairing.pairs if item != name and pairing.source(item) is not None}
        cone = self._actual.graph.cone([name], paired)
        sources = {source for node in cone for read in node.reads if (source := pairing.source(read)) is not None}
        inputs = {*self._reference.graph.inputs}
        reads = {read for node in self._reference.graph.cone([name], sources) for read in node.reads}
        return PairedValue(name, (name,), "name") if reads & inputs <= sources else None
