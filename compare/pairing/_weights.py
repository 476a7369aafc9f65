"""Pair values that are computed from the same weight.

`Pairing` says which values are harmless or settled, and which values of the reference, the sources, are free.
"""

from collections.abc import Hashable

import torch

from filch.export import Node

from ..metrics._metrics import compare_tensors
from ._observed import Observed
from ._paired_value import PairedValue
from ._pairing import SIMILAR, ComputedValue, Pairing, keeps_order

_MOST_NUMBERS = 0.5  # share of the numbers of two weights that are equal


class SameWeight:
    """Pair values that are computed from the same weight.

    Args:
        pairing: the pairs that were found so far.
    """

    def __init__(self, pairing: Pairing) -> None:
        self._pairing, self._actual, self._reference = pairing, pairing.actual, pairing.reference
        self._readers: dict[Hashable, list[Node]] = {}  # the nodes of the reference that read each weight
        for node in self._reference.graph.nodes:
            if node.name in self._reference.weights:
                self._readers.setdefault(self._reference.weights[node.name], []).append(node)

    def similar(self, value: ComputedValue) -> PairedValue | None:
        """Pair a value that has similar numbers."""
        tensor = value.tensor
        for source in self._results(value.node) if value.index == 0 else ():
            expected, shape = self._reference.values[source], None
            if self._pairing.reshaped and expected.shape != tensor.shape and expected.numel() == tensor.numel():
                expected, shape = expected.reshape(tensor.shape), tensor.shape
            if compare_tensors(tensor, expected, tolerance=SIMILAR, lower_precision=True).close:
                return PairedValue(value.name, (source,), "operands", shape)
        return None

    def wrong(self, value: ComputedValue) -> PairedValue | None:
        """Pair a wrong value that is computed from the same weight, or from one with most of its numbers."""
        pairing, values, shape = self._pairing, self._reference.values, value.tensor.shape
        if value.index != 0 or value.name in pairing.settled:
            return None
        sources = self._results(value.node) or self._results_of_similar_weight(value.node)
        free = (item for item in sources if pairing.is_free(item) and values[item].numel() == value.tensor.numel())
        source = next(free, None)
        if source is None or (values[source].shape != shape and not pairing.reshaped):
            return None
        return PairedValue(value.name, (source,), "operands", None if values[source].shape == shape else shape)

    def _results(self, node: Node) -> list[str]:
        """Return what nodes of the reference compute from the weight that a node reads."""
        return self._known(self._readers.get(self._actual.weights.get(node.name), []))

    def _results_of_similar_weight(self, node: Node) -> list[str]:
        """Return what nodes of the reference compute from a weight with most of the numbers of that of a node."""
        actual = self._actual.weight_of(node)
        if actual is None:
            return []
        weights = [(item, self._reference.weight_of(item)) for readers in self._readers.values() for item in readers]
        same = [(item, weight) for item, weight in weights if weight is not None and weight.shape == actual.shape]
        return self._known([item for item, weight in same if float((weight == actual).float().mean()) > _MOST_NUMBERS])

    def _known(self, nodes: list[Node]) -> list[str]:
        """Return the first results of nodes of the reference, as far as it has their numbers."""
        return [node.outputs[0] for node in nodes if node.outputs[0] in self._reference.values]

    def has_same_numbers(self, node: Node) -> bool:
        """Whether the reference has most numbers of a node's weight.

        The weight may be one of the reference, several that are joined along the last dimension, or a block of their
        columns.
        """
        pair, actual = self._pairing.pairs.get(node.outputs[0]), self._actual.weight_of(node)
        if pair is None or actual is None:
            return False
        weights = [weight for name in pair.sources if (weight := _weight_behind(self._reference, name)) is not None]
        shapes = {weight.shape[:-1] for weight in weights}
        if len(weights) < len(pair.sources) or shapes != {actual.shape[:-1]}:
            return False
        reference, columns = torch.cat(weights, -1), actual.shape[-1]
        # Only a block whose first column is that of the weight is compared as a whole.
        is_first = (reference == actual[..., :1]).float().mean(0) > _MOST_NUMBERS
        starts = is_first.nonzero().flatten().tolist()
        return any(
            start + columns <= reference.shape[-1]
            and float((reference[..., start : start + columns] == actual).float().mean()) > _MOST_NUMBERS
            for start in starts
        )


def _weight_behind(program: Observed, name: str) -> torch.Tensor | None:
    """Return the weight from which a value, or what it is a part of, is computed; None if there is none."""
    while (node := program.graph.producer.get(name)) is not None and keeps_order(node):
        name = node.inputs[0]
    return None if node is None else program.weight_of(node)
