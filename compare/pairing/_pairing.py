"""`Pairing`: the pairs that were found so far, and what ways to find more ask of the two programs.

The program to judge is `actual`, the other one is `reference`. A source of a value is the value of the reference that
it is paired with, or one of several that it joins along the last dimension: its parts.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch

from filch.export import Node

from ..locating._first_wrong import leading_to
from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import Tolerance
from ._observed import Observed
from ._paired_value import Evidence, PairedValue, Pairs

SIMILAR = Tolerance(1e-2, 0.1, 0.05)  # unrelated numbers differ by more, and rounding by less
_MOST_NAMES = 0.9  # of the shared names that have to be of the same operator


@dataclass(frozen=True)
class ComputedValue:
    """A value that a node of the program to judge computes.

    Attributes:
        name: the name of the value.
        node: the node.
        index: the index of the value among the node's outputs.
        tensor: its numbers.
    """

    name: str
    node: Node
    index: int
    tensor: torch.Tensor


Way = Callable[[ComputedValue], PairedValue | None]  # finds the source of a value


def keeps_order(node: Node) -> bool:
    """Whether a node returns the numbers of a value or of parts of it, in the same order."""
    return node.operator.movement in ("reshape", "part")


@dataclass
class Pairing:
    """The pairs that were found so far.

    Attributes:
        actual: the program to judge.
        reference: the reference.
        pairs: by the names of the values of `actual`.
        reshaped: whether values of another shape are paired, too.
        claimed: the sources of values, which are paired with no further value without need.
    """

    actual: Observed
    reference: Observed
    pairs: dict[str, PairedValue]
    reshaped: bool = False
    claimed: set[str] = field(default_factory=set)

    def source(self, name: str) -> str | None:
        """Return the source of a value; None if there is none, or several."""
        pair = self.pairs.get(name)
        return None if pair is None else pair.source

    def parts(self, name: str) -> tuple[str, ...]:
        """Return the values of the reference of which a value consists; none if it is one value."""
        pair = self.pairs.get(name)
        return () if pair is None or pair.source is not None else pair.sources

    def evidence(self, name: str) -> Evidence | None:
        """Return what shows which value of the reference a value is; None if that is not known."""
        pair = self.pairs.get(name)
        return None if pair is None else pair.evidence

    @property
    def found(self) -> frozenset[str]:
        """The values that are paired, without those that were given."""
        return frozenset(name for name, pair in self.pairs.items() if pair.evidence != "given")

    @property
    def references(self) -> dict[str, torch.Tensor]:
        """The numbers of the reference for each paired value."""
        return Pairs(self.pairs).references(self.reference.values)

    def unpaired(self) -> Iterator[ComputedValue]:
        """Yield each value to pair, in order."""
        for node in self.actual.graph.nodes:
            for index, name in enumerate(node.outputs):
                if name and name not in self.pairs and name in self.actual.values:
                    yield ComputedValue(name, node, index, self.actual.values[name])

    def add(self, pair: PairedValue) -> None:
        """Add a pair; its sources are claimed, unless the value only moves the numbers of its source."""
        self.pairs[pair.value] = pair
        if pair.source is None or not keeps_order(self.actual.graph.producer[pair.value]):
            self.claimed.update(pair.sources)

    def forget(self, name: str) -> None:
        """Remove the pair of a value."""
        self.claimed.difference_update(self.pairs.pop(name).sources)

    def is_free(self, name: str) -> bool:
        """Whether a value of the reference is computed by a node, and no value claims it."""
        return name in self.reference.graph.producer and name not in self.claimed

    def similarity(self, actual: str, reference: str) -> Difference:
        """Return the difference of two values, which is close if they have similar numbers."""
        tensors = self.actual.tensor(actual), self.reference.tensor(reference)
        return compare_tensors(*tensors, tolerance=SIMILAR, lower_precision=True)

    def have_same_shape(self, actual: str, reference: str | None) -> bool:
        """Whether two values have the same shape."""
        first, second = self.actual.tensor(actual), self.reference.tensor(reference or "")
        return first is not None and second is not None and first.shape == second.shape

    def have_same_kind(self, actual: str, reference: str) -> bool:
        """Whether two values are both floating-point numbers or both not: quantized integers are other numbers."""
        first, second = self.actual.tensor(actual), self.reference.tensor(reference)
        if first is None or second is None:
            return False
        return first.is_floating_point() == second.is_floating_point()

    def have_same_weight(self, node: Node, reference: Node) -> bool:
        """Whether two nodes read the same weight."""
        weight = self.actual.weights.get(node.name)
        return weight is not None and weight == self.reference.weights.get(reference.name)

    @cached_property
    def names_are_kept(self) -> bool:
        """Whether one program was made from the other: most values of the same name have the same operator."""
        reference, actual, found = self.reference.graph.producer, self.actual.graph.producer, self.found
        shared = (reference.keys() & actual.keys()) - {*self.actual.graph.outputs}
        same = [name for name in shared if name in found or reference[name].op == actual[name].op]
        return 2 * len(shared) >= len(actual) and len(same) >= _MOST_NAMES * len(shared)

    @cached_property
    def harmless(self) -> frozenset[str]:
        """The values that outputs depend on only through paired values of similar numbers, in the first run.

        They need not be wrong although they may have no source: another program may compute the same in other steps.
        """
        return self._without_effect(self.found)

    @cached_property
    def settled(self) -> frozenset[str]:
        """The values that outputs depend on only through values equal to their sources but for rounding."""
        references = self.references.items()
        close = {name for name, item in references if compare_tensors(self.actual.tensor(name), item).close}
        return self._without_effect(close)

    def _without_effect(self, right: Collection[str]) -> frozenset[str]:
        """Return the computed values, without outputs, that the outputs depend on only through those that are right."""
        graph, outputs = self.actual.graph, {*self.actual.graph.outputs}
        wrong = leading_to(graph, outputs.difference(right), right)
        read = {name for node in graph.nodes if not wrong.isdisjoint(node.outputs) for name in node.reads}
        return frozenset(graph.producer.keys() - outputs - read)
