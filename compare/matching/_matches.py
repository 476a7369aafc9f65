"""The values of one program that were found to be those of another one."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from filch.export import Node

from ..locating._first_wrong import leading_to
from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import Tolerance
from ._observed import Observed

Basis = Literal["name", "operands", "numbers"]
SIMILAR = Tolerance(1e-2, 0.1, 0.05)  # unrelated numbers differ by more, and rounding by less
_MOST_NAMES = 0.9  # of the shared names that have to be of the same operator


def takes_part(node: Node) -> bool:
    """Return whether a node gives a value or parts of it, in the same order."""
    return node.operator.movement in ("reshape", "part")


@dataclass(frozen=True)
class ProgramAlignment:
    """The values of a program that are those of another one.

    Attributes:
        names: the name of the other program's value, by the name of the value.
        bases: what shows that they are the same.
        shapes: the shape of each value that has the numbers of the other program's value in another shape, by name.
        joined: the names of the other program's values of which a value consists, along the last dimension, by name.
        same_weights: the names of the nodes with a quantized weight whose numbers the other program's weights have.
    """

    names: Mapping[str, str]
    bases: Mapping[str, Basis]
    shapes: Mapping[str, torch.Size]
    joined: Mapping[str, tuple[str, ...]]
    same_weights: frozenset[str] = frozenset()

    def references(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the references of the values, from those of the other program as far as they are known."""
        found = {name: values[source] for name, source in self.names.items() if source in values}
        found |= {name: found[name].reshape(shape) for name, shape in self.shapes.items() if name in found}
        whole = {name: parts for name, parts in self.joined.items() if all(part in values for part in parts)}
        return found | {name: torch.cat([values[part] for part in parts], -1) for name, parts in whole.items()}


@dataclass
class Matches:
    """What was found so far; see `align`.

    Attributes:
        actual: the program to judge.
        expected: the reference.
        names: as in `ProgramAlignment`, and so are `bases`, `shapes` and `joined`. Inputs and outputs have no basis.
        claimed: the values of `expected` that were found by similar numbers.
    """

    actual: Observed
    expected: Observed
    names: dict[str, str]
    bases: dict[str, Basis] = field(default_factory=dict)
    shapes: dict[str, torch.Size] = field(default_factory=dict)
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        """The number of aligned values."""
        return len(self.names) + len(self.joined)

    @property
    def references(self) -> Mapping[str, torch.Tensor]:
        """The reference of each aligned value."""
        return self.result().references(self.expected.values)

    def result(self, same_weights: frozenset[str] = frozenset()) -> ProgramAlignment:
        """Return the values that were aligned."""
        bases: dict[str, Basis] = {**dict.fromkeys(self.names, "name"), **self.bases}
        return ProgramAlignment(self.names, bases, self.shapes, self.joined, same_weights)

    def unaligned(self) -> Iterator[tuple[Node, int, str]]:
        """Yield each value to align, with its node and its place among the node's outputs, in order."""
        for node in self.actual.graph.nodes:
            for index, name in enumerate(node.outputs):
                if name and name not in self.names and name not in self.joined and name in self.actual.values:
                    yield node, index, name

    def add(self, name: str, found: str, basis: Basis) -> None:
        """Align a value."""
        self.names[name], self.bases[name] = found, basis

    def claim(self, name: str, found: str, basis: Basis) -> None:
        """Align a value; no other one is aligned with the same value without need, unless it is the same one moved."""
        self.add(name, found, basis)
        if not takes_part(self.actual.graph.producer[name]):
            self.claimed.add(found)

    def join(self, name: str, parts: tuple[str, ...], basis: Basis) -> None:
        """Align a value with joined ones."""
        self.joined[name], self.bases[name] = parts, basis
        self.claimed.update(parts)

    def forget(self, name: str) -> None:
        """Align a value no longer."""
        self.claimed -= {self.names.pop(name, ""), *self.joined.pop(name, ())}
        self.shapes.pop(name, None)
        del self.bases[name]

    def is_free(self, name: str) -> bool:
        """Whether a value of `expected` is computed by a node and not claimed by another value."""
        return name in self.expected.graph.producer and name not in self.claimed

    def are_similar(self, actual: str, expected: str) -> bool:
        """Whether two values have similar numbers."""
        return self.similarity(actual, expected).close

    def similarity(self, actual: str, expected: str) -> Difference:
        """Return the difference of two values, which is close if they have similar numbers."""
        tensors = self.actual.tensor(actual), self.expected.tensor(expected)
        return compare_tensors(*tensors, tolerance=SIMILAR, lower_precision=True)

    def have_same_shape(self, actual: str, expected: str | None = None) -> bool:
        """Whether two values have the same shape; None is the value that `actual` is aligned with."""
        expected = self.names.get(actual, "") if expected is None else expected
        first, second = self.actual.tensor(actual), self.expected.tensor(expected)
        return first is not None and second is not None and first.shape == second.shape

    def have_same_kind(self, actual: str, expected: str) -> bool:
        """Whether two values are both floating-point numbers or both not: quantized integers are other numbers."""
        first, second = self.actual.tensor(actual), self.expected.tensor(expected)
        if first is None or second is None:
            return False
        return first.is_floating_point() == second.is_floating_point()

    def have_same_weight(self, node: Node, other: Node) -> bool:
        """Whether two nodes read the same weight."""
        weight = self.actual.weights.get(node.name)
        return weight is not None and weight == self.expected.weights.get(other.name)

    @cached_property
    def names_are_kept(self) -> bool:
        """Whether one program was made from the other: most values of the same name have the same operator."""
        producers = self.expected.graph.producer, self.actual.graph.producer
        shared = (producers[0].keys() & producers[1].keys()) - {*self.actual.graph.outputs}
        same = [name for name in shared if name in self.bases or len({item[name].op for item in producers}) == 1]
        return 2 * len(shared) >= len(producers[1]) and len(same) >= _MOST_NAMES * len(shared)

    @cached_property
    def harmless(self) -> frozenset[str]:
        """The values whose numbers do not matter in the first run: outputs depend on them only through similar ones."""
        return self._without_effect(self.bases)

    @cached_property
    def settled(self) -> frozenset[str]:
        """The same, only through values that are equal up to rounding."""
        references = self.references.items()
        close = {name for name, item in references if compare_tensors(self.actual.tensor(name), item).close}
        return self._without_effect(close)

    def _without_effect(self, right: Collection[str]) -> frozenset[str]:
        """Return the values on which the outputs depend only through those that are right."""
        graph, outputs = self.actual.graph, {*self.actual.graph.outputs}
        wrong = leading_to(graph, outputs.difference(right), right)
        read = {name for node in graph.nodes if not wrong.isdisjoint(node.outputs) for name in node.reads}
        return frozenset(graph.producer.keys() - outputs - read)
