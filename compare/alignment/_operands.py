"""The operands of the operations that read the same weights in two executions, and how they are arranged."""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cached_property

import torch

from ..layouts._closeness import RELATIVE
from ..layouts._layout import Layout
from ..layouts._numbers import TensorNumbers
from ..layouts._solve import solve
from ..pairing._correspondence import Anchor, Correspondence, size_of
from ..pairing._places import place_of
from ..runs._execution import Execution

Shape = tuple[int, ...]
Key = tuple[str, Shape, Shape]  # a place in B and both shapes
Orders = Mapping[Key, Layout | None]  # None if they differ
_ENOUGH = 2  # operations whose operands are arranged alike: the order of a single one may be wrong


class Operands:
    """The operands of all anchors, as the operations read them.

    Args:
        pairs: the executions with their anchors.
        found: the values of B whose numbers are those of A; None for those of the run itself.
        actual: the operands of B by name, as computed in another run; None for those of the run itself.
    """

    def __init__(
        self,
        pairs: Correspondence,
        found: Collection[str] | None = None,
        actual: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._pairs = pairs
        self._found = pairs.found_in_reference if found is None else found
        if actual is not None:
            self.actual = actual

    @cached_property
    def reference(self) -> Mapping[str, torch.Tensor]:
        """The operands of A, by name; empty if A can't run again."""
        run_again = self._pairs.reference.execution.run_again
        return {} if run_again is None else run_again({}, {item.reference_operand for item in self._pairs.anchors})

    @cached_property
    def actual(self) -> Mapping[str, torch.Tensor]:
        """The operands of B, by name; empty if B can't run again."""
        run_again = self._pairs.actual.execution.run_again
        return {} if run_again is None else run_again({}, {item.operand for item in self._pairs.anchors})

    @cached_property
    def orders(self) -> Orders:
        """How operands of A are arranged in B, from the anchors at which B is right."""
        usual = {key: counts.most_common(1)[0][0] for key, counts in self._seen.items()}
        return {key: layout if key[0] or len(self._seen[key]) == 1 else None for key, layout in usual.items()}

    @cached_property
    def _seen(self) -> Mapping[Key, Counter[Layout]]:
        """How many operands of the anchors at which B is right are arranged in each way."""
        seen: dict[Key, dict[str, Layout]] = {}
        roots = self._pairs.actual.execution.roots
        for anchor in self._pairs.anchors:
            pair = self._pair(anchor)
            if pair is None or not all(name in self._found for name in (roots[anchor.operand], anchor.node.outputs[0])):
                continue
            layout = (
                solve(TensorNumbers(pair[1]), TensorNumbers(pair[0])) if pair[0].numel() == pair[1].numel() else None
            )
            if layout is not None:
                for key in self._keys(anchor, *pair):
                    seen.setdefault(key, {})[anchor.operand] = layout
        return {key: Counter(layouts.values()) for key, layouts in seen.items()}

    def expected(self, anchor: Anchor) -> torch.Tensor | None:
        """Return the operand of A in the shape and order of B; None if the order is not known."""
        pair = self._pair(anchor)
        if pair is None:
            return None
        moved = self._moved(anchor, pair[1]) if self.is_guessed(anchor) else None
        if moved is not None and not (self._has_wrong_result(anchor) and self._is_right_with(anchor, pair[0])):
            return moved
        return arranged(*pair, self.orders, place_of(anchor.weight))

    def _has_wrong_result(self, anchor: Anchor) -> bool:
        """Whether an operation of B computes something else than A from A's numbers, which may be in another order."""
        roots = self._pairs.actual.execution.roots
        return roots[anchor.operand] in self._found and anchor.node.outputs[0] not in self._found

    def in_order_of(self, reference: str, actual: str) -> torch.Tensor | None:
        """Return the numbers of a value of A in the shape of a value of B; None if their order is not known."""
        reference_run, actual_run = self._pairs.reference.execution, self._pairs.actual.execution
        value = reference_run.values.get(reference_run.roots[reference])
        shaped = actual_run.values.get(actual_run.roots[actual])
        return None if value is None or shaped is None else arranged(value, shaped, self.orders)

    def _moved(self, anchor: Anchor, operand: torch.Tensor) -> torch.Tensor | None:
        """Return the operand of A in the order that B's movements, such as reshape or transpose, give to its operand.

        Args:
            anchor: the operations that read the operands.
            operand: the operand of B, as it is read.

        Returns:
            A's value behind the operand, moved like B's; None if the sizes do not tell how it is arranged.
        """
        reference_run, actual_run = self._pairs.reference.execution, self._pairs.actual.execution
        reference = reference_run.values.get(reference_run.roots[anchor.reference_operand])
        actual = actual_run.values.get(actual_run.roots[anchor.operand])
        if reference is None or actual is None:
            return None
        ordered = _with_sizes(reference, tuple(actual.shape))
        layout = solve(TensorNumbers(operand), TensorNumbers(actual))
        return None if ordered is None or layout is None else layout.select(ordered).reshape(operand.shape).clone()

    def is_guessed(self, anchor: Anchor) -> bool:
        """Whether the order of the expected operand is not that of several operations of the same kind."""
        pair = self._pair(anchor)
        counts = Counter() if pair is None else self._seen.get(self._keys(anchor, *pair)[0], Counter())
        return max(counts.values(), default=0) < _ENOUGH

    def is_misplaced(self, anchor: Anchor) -> bool:
        """Whether the operand of B has the numbers of A, but in another order than it is expected to have."""
        expected = self.expected(anchor)
        if expected is None:
            return False
        actual = self.actual[anchor.operand]
        closeness = TensorNumbers(expected).closeness(RELATIVE)
        if (
            closeness.holds(actual.reshape(-1), expected.reshape(-1))
            or solve(TensorNumbers(actual), TensorNumbers(expected)) is None
        ):
            return False
        return not self.is_guessed(anchor) or self._is_right_with(anchor, expected)

    def _is_right_with(self, anchor: Anchor, operand: torch.Tensor) -> bool:
        """Whether the operation of B computes A's result from an operand."""
        run_again, output = self._pairs.actual.execution.run_again, anchor.node.outputs[0]
        reference = self._pairs.reference.execution.values.get(anchor.reference.outputs[0])
        shape = self.actual[anchor.operand].shape
        if run_again is None or reference is None or not anchor.whole or operand.shape != shape:
            return False
        result = run_again({anchor.operand: operand}, {output}).get(output)
        return result is not None and solve(TensorNumbers(result), TensorNumbers(reference)) is not None

    def _pair(self, anchor: Anchor) -> tuple[torch.Tensor, torch.Tensor] | None:
        reference, actual = self.reference.get(anchor.reference_operand), self.actual.get(anchor.operand)
        if reference is None or actual is None or not reference.is_floating_point():
            return None
        return reference, actual

    def _keys(self, anchor: Anchor, reference: torch.Tensor, actual: torch.Tensor) -> list[Key]:
        return [(place, tuple(reference.shape), tuple(actual.shape)) for place in (place_of(anchor.weight), "")]


def _with_sizes(tensor: torch.Tensor, shape: Shape) -> torch.Tensor | None:
    """Return a tensor in a shape: with some dimensions joined or split, or else permuted, if the sizes tell how."""
    if tensor.numel() != math.prod(shape):
        return None
    sizes, wanted = (tuple(size for size in item if size > 1) for item in (tensor.shape, shape))
    if not _ends(sizes) - _ends(wanted) or not _ends(wanted) - _ends(sizes):
        return tensor.reshape(shape).clone()
    if sorted(sizes) != sorted(wanted) or len({*sizes}) < len(sizes):
        return None
    return tensor.reshape(sizes).permute([sizes.index(size) for size in wanted]).reshape(shape)


def _ends(sizes: Shape) -> set[int]:
    """Return the numbers of elements of the last dimensions, of one of them to all."""
    return {*itertools.accumulate(reversed(sizes), operator.mul)}


def arranged(reference: torch.Tensor, actual: torch.Tensor, orders: Orders, place: str = "") -> torch.Tensor | None:
    """Return the numbers of a value of A in the shape of a value of B; None if their order is not known."""
    if reference.numel() != actual.numel():
        return None
    shapes = tuple(reference.shape), tuple(actual.shape)
    for key in ((place, *shapes), ("", *shapes)):
        if key in orders:
            layout = orders[key]
            return None if layout is None else layout.select(reference).reshape(actual.shape).clone()
    return _with_sizes(reference, tuple(actual.shape))


def residual_sum(execution: Execution, name: str) -> str | None:
    """Return the sum of two values from which a value of the same size is computed; None if there is none.

    Between both, there is a norm, or anything else that reads one value of that size. Matrix products are not crossed.

    Args:
        execution: a run of an implementation.
        name: an operand of an operation that reads a weight.
    """
    size = size_of(execution, name)
    while (node := execution.graph.producer.get(name)) is not None and not node.operator.is_linear:
        reads = dict.fromkeys(node.reads)
        computed = [
            read for read in reads if size_of(execution, read) > 1 and execution.roots[read] in execution.values
        ]
        if node.operator.kind == "add" and len(computed) > 1:
            return name
        same = [read for read in computed if size_of(execution, read) == size]
        if len(same) != 1:
            return None
        name = same[0]
    return None
