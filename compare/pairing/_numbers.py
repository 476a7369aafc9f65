"""Pair values that have nearly the same numbers.

`Pairing` says which values are harmless or settled, and which values of the reference, the sources, are free.
"""

from collections.abc import Sequence
from functools import cache, cached_property

import torch

from filch.export import Node

from ..metrics._nearest import Nearest
from ._operands import SameOperands
from ._paired_value import Evidence, PairedValue
from ._pairing import ComputedValue, Pairing, keeps_order


class SameNumbers:
    """Pair values that have nearly the same numbers.

    Args:
        pairing: the pairs that were found so far.
        operands: tells which values of the reference are computed from what a node reads.
    """

    def __init__(self, pairing: Pairing, operands: SameOperands) -> None:
        self._pairing, self._operands = pairing, operands
        self._actual, self._reference = pairing.actual, pairing.reference
        names = self._reference.graph.producer.keys() - self._reference.constants.keys()
        self._values = {name: self._reference.values[name] for name in names if name in self._reference.values}
        self._nearest = Nearest(self._values)
        self._sizes = cache(self._last_sizes)

    def find(self, tensor: torch.Tensor) -> str | None:
        """Return the value that a node of the reference computes with nearly these numbers; None if there is none."""
        return self._nearest.find(tensor)

    def similar(self, value: ComputedValue) -> PairedValue | None:
        """Pair a value that is computed otherwise; a copy may stand where a value was computed."""
        name, node, tensor = value.name, value.node, value.tensor
        if node.op == "Identity":
            return None
        if (source := self.find(tensor)) is not None:
            return PairedValue(name, (source,), self.evidence(node, source))
        if self._pairing.reshaped and (source := self._nearest_flat.find(tensor.reshape(-1))) is not None:
            return PairedValue(name, (source,), self.evidence(node, source), tensor.shape)
        if self._are_in_order(parts := self._parts(tensor)):
            return PairedValue(name, parts, "operands" if {*parts} <= {*self._operands.results(node)} else "numbers")
        return None

    def whole(self, value: ComputedValue) -> PairedValue | None:
        """Pair a value that has the numbers of an earlier one, which replaces a wrong value."""
        source = self.find(value.tensor)
        return None if source is None else PairedValue(value.name, (source,), "numbers")

    def joined(self, value: ComputedValue) -> PairedValue | None:
        """Pair a value that consists of others, in whatever order the reference computes them."""
        parts = self._parts(value.tensor)
        return PairedValue(value.name, parts, "numbers") if parts else None

    @cached_property
    def _nearest_flat(self) -> Nearest:
        """Finds values of the reference, in whatever shape, by their numbers."""
        floats = {name: tensor for name, tensor in self._values.items() if tensor.is_floating_point()}
        return Nearest({name: tensor.reshape(-1) for name, tensor in floats.items() if tensor.numel() > 1})

    def _parts(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """Return the values that make up a tensor when they are joined along the last dimension; none if it has others.

        They are those that are found from its start, the largest first.
        """
        found = []
        while tensor.is_floating_point() and tensor.ndim > 1 and tensor.numel():
            sizes = (size for size in self._sizes(tensor.dtype, tensor.shape[:-1]) if size <= tensor.shape[-1])
            parts = ((size, self.find(tensor[..., :size].contiguous())) for size in sizes)
            size, part = next(((size, part) for size, part in parts if part is not None), (0, None))
            if part is None:
                return ()
            found.append(part)
            tensor = tensor[..., size:]
        return tuple(found)

    def _last_sizes(self, dtype: torch.dtype, shape: torch.Size) -> list[int]:
        """Return the sizes of the last dimension of the values with these other dimensions, the largest first."""
        values = self._values.values()
        found = {item.shape[-1] for item in values if item.ndim and (item.dtype, item.shape[:-1]) == (dtype, shape)}
        return sorted(found - {0}, reverse=True)

    def _are_in_order(self, parts: Sequence[str]) -> bool:
        """Whether the reference computes these values in this order."""
        graph = self._reference.graph
        places = [graph.node_indices[graph.producer[part].name] for part in parts]
        return len(parts) > 1 and places == sorted(places)

    def evidence(self, node: Node, source: str) -> Evidence:
        """Return what shows that a node computes a value of the reference: what it reads, or the numbers alone.

        Values that the node reads have sources in the reference. `"operands"` if the node only moves the numbers of one
        of them, or if the reference computes `source` from them and from no other input. A source that was itself found
        by its numbers shows nothing.
        """
        pairs = [self._pairing.pairs[name] for name in node.reads if name in self._pairing.pairs]
        sources = {item for pair in pairs if pair.evidence != "numbers" for item in pair.sources}
        values, graph = self._reference.values, self._reference.graph
        if keeps_order(node) and any(_equal(values.get(item), values[source]) for item in sources):
            return "operands"
        read = {name for item in graph.cone([source], sources) for name in item.reads}  # between them and `source`
        return "operands" if read & sources and read & {*graph.inputs} <= sources else "numbers"

    def confirm_by_weight(self) -> None:
        """Change the evidence of values that were found by their numbers, and that the same weight multiplies."""
        pairing, values = self._pairing, self._reference.values
        for node in self._actual.graph.nodes:
            name = node.outputs[0]
            reference = self._reference.graph.producer.get(pairing.source(name) or "")
            if reference is None or not pairing.have_same_weight(node, reference):
                continue
            if pairing.evidence(name) == "numbers":  # which shows nothing of what the node reads
                continue
            read, source = node.inputs[0], reference.inputs[0]
            paired = values.get(pairing.source(read) or "")
            if pairing.evidence(read) == "numbers" and _equal(paired, values.get(source)):
                pairing.add(PairedValue(read, (source,), "operands", pairing.pairs[read].shape))


def _equal(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    """Whether two tensors are known and have the same numbers in the same order."""
    return first is not None and second is not None and torch.equal(first.reshape(-1), second.reshape(-1))
