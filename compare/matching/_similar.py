"""Match the values that have similar numbers in both programs."""

from collections.abc import Sequence

import torch

from filch.export import Node

from ..metrics._metrics import compare_tensors
from ._matches import SIMILAR, Basis, Matches, takes_part
from ._numbers import ProgramNumbers
from ._operations import ReferenceOperations

_ROUNDED = 1e-3  # root mean square of what rounding changes, relative to that of the numbers; in float16, too


class SimilarValues:
    """Match values with similar numbers: of the same name, operator or weight, or nearly the same numbers.

    Args:
        matches: the values that were found so far; more are added.
        operations: the nodes of the reference.
        numbers: the values of the reference.
        reshaped: whether values in another shape count.
    """

    def __init__(
        self, matches: Matches, operations: ReferenceOperations, numbers: ProgramNumbers, *, reshaped: bool
    ) -> None:
        self._matches, self._operations, self._numbers, self._reshaped = matches, operations, numbers, reshaped
        self._actual, self._expected = matches.actual, matches.expected

    def align(self) -> None:
        """Align values: by name first, as other values may have the same numbers."""
        matches, numbers = self._matches, self._numbers
        self._align_names()
        for node, index, name in matches.unaligned():
            tensor = self._actual.values[name]
            if matches.names_are_kept and name in self._expected.graph.producer:
                if (later := self._later(name, tensor)) is not None:
                    matches.claim(name, later, self._basis(node, later))
            elif (candidate := self._by_operands(node, index, name)) is not None or (
                candidate := self._by_weight(node, index, name)
            ) is not None:
                matches.claim(name, candidate, "operands")
            elif node.op == "Identity":
                continue  # a copy may stand where a value was computed
            elif (nearest := numbers.nearest(tensor)) is not None:
                matches.claim(name, nearest, self._basis(node, nearest))
            elif self._reshaped and (nearest := numbers.nearest_reshaped(tensor)) is not None:
                matches.claim(name, nearest, self._basis(node, nearest))
                matches.shapes[name] = tensor.shape
            elif self._in_order(parts := numbers.parts(tensor)):
                same = {*parts} <= {*self._operations.results(node)}
                matches.join(name, parts, "operands" if same else "numbers")
        self._confirm_by_weight()

    def _align_names(self) -> None:
        """Align values of the same name with similar numbers, unless a later value of the reference has their own."""
        matches, coarse = self._matches, list[str]()
        for name in self._actual.graph.producer:
            found = matches.names.get(name, name)
            if found not in self._expected.graph.known or name in matches.bases:
                continue
            difference = matches.similarity(name, found)
            if difference.close:
                matches.claim(name, found, "name")
                if difference.rms > _ROUNDED and name in self._actual.values and name not in self._actual.graph.outputs:
                    coarse.append(name)
        for name in coarse:
            if (later := self._later(name, self._actual.values[name])) is not None:
                matches.forget(name)
                matches.claim(name, later, self._basis(self._actual.graph.producer[name], later))

    def _later(self, name: str, tensor: torch.Tensor) -> str | None:
        """Return the value with nearly the same numbers that the reference computes from that of the same name.

        Optimizers fold what follows a product into its weights, and keep the name of its result. If the later value is
        there as well, it is computed twice.
        """
        found, graph = self._numbers.nearest(tensor), self._expected.graph
        if found is None or found in self._actual.graph.producer or not self._matches.is_free(found):
            return None
        return found if any(name in node.reads for node in graph.cone([found], {name})) else None

    def _by_operands(self, node: Node, index: int, name: str) -> str | None:
        found = (item.outputs[index] for item in self._operations.candidates(node) if index < len(item.outputs))
        return next((item for item in found if item and self._matches.are_similar(name, item)), None)

    def _by_weight(self, node: Node, index: int, name: str) -> str | None:
        tensor = self._actual.values[name]
        for item in self._operations.readers_of_weight(node) if not index else ():
            value = self._expected.values.get(item.outputs[0])
            if value is None:
                continue
            is_other = value.shape != tensor.shape
            if is_other and self._reshaped and value.numel() == tensor.numel():
                value = value.reshape(tensor.shape)
            if compare_tensors(tensor, value, tolerance=SIMILAR, lower_precision=True).close:
                self._matches.shapes |= {name: tensor.shape} if is_other else {}
                return item.outputs[0]
        return None

    def _basis(self, node: Node, found: str) -> Basis:
        """Return what shows that a node computes a value of the reference: also what it reads, or the numbers alone.

        It only moves the numbers of a known value, or the reference computes the value from what the node reads alone.
        """
        names, bases, joined = self._matches.names, self._matches.bases, self._matches.joined
        known = [name for name in node.reads if bases.get(name) != "numbers"]
        sources = {names[name] for name in known if name in names}
        sources |= {part for name in known for part in joined.get(name, ())}
        values, graph = self._expected.values, self._expected.graph
        if takes_part(node) and any(_equal(values.get(source), values[found]) for source in sources):
            return "operands"
        read = {name for item in graph.cone([found], sources) for name in item.reads}
        return "operands" if read & sources and read & {*graph.inputs} <= sources else "numbers"

    def _in_order(self, parts: Sequence[str]) -> bool:
        """Whether the reference computes these values in this order."""
        graph = self._expected.graph
        places = [graph.node_indices[graph.producer[part].name] for part in parts]
        return len(parts) > 1 and places == sorted(places)

    def _confirm_by_weight(self) -> None:
        """Note which values found by their numbers are read together with the same weight in the reference."""
        names, bases, values = self._matches.names, self._matches.bases, self._expected.values
        for node in self._actual.graph.nodes:
            name = node.outputs[0]
            other = self._expected.graph.producer.get(names.get(name, ""))
            if other is None or bases.get(name) == "numbers" or not self._matches.have_same_weight(node, other):
                continue
            read, found = node.inputs[0], other.inputs[0]
            if bases.get(read) == "numbers" and _equal(values.get(names.get(read, "")), values.get(found)):
                self._matches.add(read, found, "operands")


def _equal(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    """Whether two tensors have the same numbers in the same order."""
    return first is not None and second is not None and torch.equal(first.reshape(-1), second.reshape(-1))
