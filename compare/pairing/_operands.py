"""Pair values that the same operator computes from the same values.

A value is harmless if the reference has one of similar numbers, so that it is not wrong, and claimed are the sources
(values of the reference) that pairs have already: see `Pairing`.
"""

import itertools
from collections.abc import Hashable, Iterable

from filch.export import Node
from filch.export.operators._registry import operator_of

from ._observed import Observed
from ._paired_value import PairedValue
from ._pairing import ComputedValue, Pairing
from ._quantized import PRODUCT

Key = tuple[Hashable, ...]  # an operator, the number of its operands, and what identifies each of them


class SameOperands:
    """Pair values that the same operator computes from the same values.

    Args:
        pairing: the pairs that were found so far.
    """

    def __init__(self, pairing: Pairing) -> None:
        self._pairing, self._actual, self._reference = pairing, pairing.actual, pairing.reference
        self._exact: dict[Key, list[Node]] = {}  # nodes of the reference that read the same values and constants
        self._relaxed: dict[Key, list[Node]] = {}  # those that read the same values and any constants
        for node in self._reference.graph.nodes:
            operands = [self._operand(self._reference, name, name) for name in node.reads]
            self._exact.setdefault(_key(node.op, operands), []).append(node)
            self._relaxed.setdefault(_key(node.op, map(_any_constant, operands)), []).append(node)

    def similar(self, value: ComputedValue) -> PairedValue | None:
        """Pair a value that has similar numbers."""
        sources = (source for _, source in self._outputs(value))
        found = (source for source in sources if self._pairing.similarity(value.name, source).close)
        return next((PairedValue(value.name, (source,), "operands") for source in found), None)

    def exact(self, value: ComputedValue) -> PairedValue | None:
        """Pair a value of other numbers with that of the same node: its name, or attributes and constants are equal."""
        for reference, source in self._outputs(value):
            same_attributes = self._actual.attributes(value.node) == self._reference.attributes(reference)
            is_same = same_attributes and self._read_same_constants(value.node, reference)
            if self._pairing.have_same_kind(value.name, source) and (source == value.name or is_same):
                return PairedValue(value.name, (source,), "operands")
        return None

    def wrong(self, value: ComputedValue) -> PairedValue | None:
        """Pair a wrong value that the same operator computes, with whatever attributes and constants."""
        pairing, name = self._pairing, value.name
        sources = [source for _, source in self._outputs(value) if pairing.is_free(source)]
        sources = [source for source in sources if pairing.have_same_kind(name, source)]
        if not sources or name in pairing.harmless:
            return None
        return PairedValue(name, (name,), "name") if name in sources else PairedValue(name, (sources[0],), "operands")

    def joined(self, value: ComputedValue) -> PairedValue | None:
        """Pair a wrong value that should consist of neighbours among those that its operator computes from the same.

        Their sizes along the last dimension add up to that of the value, as those of queries, keys and values do. Of
        several ways, the one with the fewest claimed sources is taken.
        """
        shape, candidates = value.tensor.shape, list[tuple[str, ...]]()
        is_wrong = value.name not in self._pairing.harmless
        found = self.results(value.node) if shape and is_wrong else []  # a single number has no parts
        for start, end in itertools.combinations(range(len(found) + 1), 2):
            parts = tuple(found[start:end])
            sizes = [self._reference.values[part].shape for part in parts if part in self._reference.values]
            lasts = [size[-1] for size in sizes if len(size) == len(shape) and size[:-1] == shape[:-1]]
            if 1 < len(parts) == len(lasts) and sum(lasts) == shape[-1]:
                candidates.append(parts)
        parts = min(candidates, key=lambda parts: len(self._pairing.claimed.intersection(parts)), default=())
        return PairedValue(value.name, parts, "operands") if parts else None

    def results(self, node: Node) -> list[str]:
        """Return what the operator of a node computes in the reference from the same values, in order.

        If the node reads a joined value, that is what it computes from each of the parts.
        """
        joined = [parts for name in node.reads if (parts := self._pairing.parts(name))]
        read: tuple[str | None, ...] = joined[0] if len(joined) == 1 else (None,)
        found = {item.outputs[0] for part in read for item in self._candidates(node, part)}
        return [name for name in self._reference.graph.producer if name in found]

    def _outputs(self, value: ComputedValue) -> list[tuple[Node, str]]:
        """Return the nodes of the reference that may compute a value, each with its output of the same index."""
        candidates = (node for node in self._candidates(value.node) if value.index < len(node.outputs))
        return [(node, node.outputs[value.index]) for node in candidates if node.outputs[value.index]]

    def _candidates(self, node: Node, part: str | None = None) -> list[Node]:
        """Return the nodes with the same operator that read the same values, equal constants first.

        Args:
            node: the node of the program to judge.
            part: the value that is read in place of a joined one; None if none is read.
        """
        if node.op == "Constant" or (node.op == "Identity" and self._has_other_numbers(node.outputs[0])):
            return []  # all constants read the same, and a copy may stand where a value was computed
        op, operands = self._operation(node, part)
        if None in operands:  # one has no source
            return []
        exact = self._exact.get(_key(op, operands), [])
        relaxed = self._relaxed.get(_key(op, map(_any_constant, operands)), [])
        return [*exact, *(item for item in relaxed if item not in exact)]

    def _has_other_numbers(self, name: str) -> bool:
        """Whether the reference computes a value of this name and shape, with other numbers."""
        pairing = self._pairing
        is_known = name in self._reference.graph.producer and pairing.have_same_shape(name, name)
        return is_known and not pairing.similarity(name, name).close

    def _read_same_constants(self, node: Node, reference: Node) -> bool:
        """Whether the constants that two nodes read are equal."""
        constants, reference_constants = self._actual.constants, self._reference.constants
        return [*map(constants.get, node.reads)] == [*map(reference_constants.get, reference.reads)]

    def _operand(self, side: Observed, name: str, source: str | None) -> Hashable:
        """Return what identifies a value that a node reads: its numbers if it is constant, else its source.

        Args:
            side: the program of the node.
            name: the value.
            source: its name in the reference; None if it has none, which gives None.
        """
        if name in side.constants:
            return "constant", side.constants[name]
        return None if source is None else ("value", self._reference.source(source))

    def _operation(self, node: Node, part: str | None) -> tuple[str, list[Hashable]]:
        """Return the operator of a node and what identifies its operands; see `_candidates`.

        Those of a product with a quantized weight are of the product with the weight that it stands for.
        """

        def operand(read: str) -> Hashable:
            name = read if read in self._pairing.pairs else self._actual.source(read)
            return self._operand(self._actual, name, part if self._pairing.parts(name) else self._pairing.source(name))

        if node.op in PRODUCT and node.name in self._actual.weights:
            return PRODUCT[node.op], [operand(node.inputs[0]), ("constant", self._actual.weights[node.name])]
        return node.op, [*map(operand, node.reads)]


def _key(op: str, operands: Iterable[Hashable]) -> Key:
    """Return what identifies an operation; operands of a commutative operator may be in any order."""
    listed = [*operands]
    return op, len(listed), *(sorted(listed, key=repr) if operator_of(op).commutes else listed)


def _any_constant(operand: Hashable) -> Hashable:
    """Return what identifies an operand, without the numbers of a constant."""
    return "constant" if isinstance(operand, tuple) and operand[0] == "constant" else operand
