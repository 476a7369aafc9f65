"""Find the nodes of one program that compute what a node of another one computes: by operands, or by the weight."""

import itertools
from collections.abc import Hashable, Iterable

from filch.export import Node
from filch.export.operators._registry import operator_of

from ._matches import Matches
from ._observed import Observed
from ._quantized import PRODUCT

Key = tuple[Hashable, ...]
MOST_NUMBERS = 0.5  # of a quantized weight


class ReferenceOperations:
    """The nodes of the reference, by their operators and operands and by the weights that they read.

    Args:
        matches: the values that were found so far.
    """

    def __init__(self, matches: Matches) -> None:
        self._matches, self._actual, self._expected = matches, matches.actual, matches.expected
        self._exact: dict[Key, list[Node]] = {}
        self._relaxed: dict[Key, list[Node]] = {}
        self._readers: dict[Hashable, list[Node]] = {}  # of a weight
        for node in self._expected.graph.nodes:
            operands = [self._operand(self._expected, name, name) for name in node.reads]
            self._exact.setdefault(_key(node.op, operands), []).append(node)
            self._relaxed.setdefault(_key(node.op, map(_any_constant, operands)), []).append(node)
            if node.name in self._expected.weights:
                self._readers.setdefault(self._expected.weights[node.name], []).append(node)

    def candidates(self, node: Node, part: str | None = None) -> list[Node]:
        """Return the nodes with the same operator that read the same values, equal constants first.

        Args:
            node: the node of the program to judge.
            part: the value that is read in place of a joined one; None if none is read.
        """
        if node.op == "Constant" or (node.op == "Identity" and self._is_other(node.outputs[0])):
            return []  # all constants read the same, and a copy may stand where a value was computed
        op, operands = self._operation(node, part)
        if None in operands:
            return []
        exact = self._exact.get(_key(op, operands), [])
        relaxed = self._relaxed.get(_key(op, map(_any_constant, operands)), [])
        return [*exact, *(item for item in relaxed if item not in exact)]

    def results(self, node: Node) -> list[str]:
        """Return what the operator of a node computes in the reference from the same values, or each joined part."""
        joined = [self._matches.joined[name] for name in node.reads if name in self._matches.joined]
        parts = joined[0] if len(joined) == 1 else (None,)
        found = {item.outputs[0] for part in parts for item in self.candidates(node, part)}
        return [name for name in self._expected.graph.producer if name in found]

    def parts(self, node: Node, name: str) -> tuple[str, ...]:
        """Return the values of which a value should consist: computed by its operator from the same values."""
        shape, candidates = self._actual.values[name].shape, list[tuple[str, ...]]()
        found = self.results(node) if shape else []  # a single number has no parts
        for start, end in itertools.combinations(range(len(found) + 1), 2):
            parts = tuple(found[start:end])
            sizes = [self._expected.values[part].shape for part in parts if part in self._expected.values]
            lasts = [size[-1] for size in sizes if len(size) == len(shape) and size[:-1] == shape[:-1]]
            if 1 < len(parts) == len(lasts) and sum(lasts) == shape[-1]:
                candidates.append(parts)
        return min(candidates, key=lambda parts: len(self._matches.claimed.intersection(parts)), default=())

    def readers_of_weight(self, node: Node) -> list[Node]:
        """Return the nodes that read the same weight as a node."""
        return self._readers.get(self._actual.weights.get(node.name), [])

    def readers_of_similar_weight(self, node: Node) -> list[Node]:
        """Return the nodes that read a weight with most of the numbers of the one that a node reads."""
        own = self._actual.weight_of(node)
        if own is None:
            return []
        weights = [(item, self._expected.weight_of(item)) for readers in self._readers.values() for item in readers]
        same = [(item, weight) for item, weight in weights if weight is not None and weight.shape == own.shape]
        return [item for item, weight in same if float((weight == own).float().mean()) > MOST_NUMBERS]

    def _is_other(self, name: str) -> bool:
        """Whether the reference computes a value of this name and shape, with other numbers."""
        matches = self._matches
        is_known = name in self._expected.graph.producer and matches.have_same_shape(name, name)
        return is_known and not matches.are_similar(name, name)

    def _operand(self, side: Observed, name: str, aligned: str | None) -> Hashable:
        """Return what identifies a value that a node reads; `aligned` is its name in the reference."""
        if name in side.constants:
            return "constant", side.constants[name]
        return None if aligned is None else ("value", self._expected.source(aligned))

    def _operation(self, node: Node, part: str | None) -> tuple[str, list[Hashable]]:
        """Return the operator of a node and what identifies its operands; see `candidates`."""
        names, joined = self._matches.names, self._matches.joined

        def operand(name: str) -> Hashable:
            source = name if name in names or name in joined else self._actual.source(name)
            return self._operand(self._actual, source, part if source in joined else names.get(source))

        if node.op in PRODUCT and node.name in self._actual.weights:
            return PRODUCT[node.op], [operand(node.inputs[0]), ("constant", self._actual.weights[node.name])]
        return node.op, [*map(operand, node.reads)]


def _key(op: str, operands: Iterable[Hashable]) -> Key:
    listed = [*operands]
    return op, len(listed), *(sorted(listed, key=repr) if operator_of(op).commutes else listed)


def _any_constant(operand: Hashable) -> Hashable:
    return "constant" if isinstance(operand, tuple) and operand[0] == "constant" else operand
