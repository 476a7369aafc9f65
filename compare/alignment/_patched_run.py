"""B, run again with numbers of A in place of some of its own, and the operands that are put in place.

`PatchedRun` is the last run of B. `Operands` tells how A's numbers have to be arranged for the operations that read
them. The root of a value is the one from which it was only moved, by a reshape or a transpose, say (see
`Execution.roots`). Anchors are operations of B and A that read the same weight, and their operands what they read
besides.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cached_property

import torch

from filch.export import Node

from ..layouts._closeness import RELATIVE
from ..layouts._layout import Layout, Shape, are_regrouped, long_sizes
from ..layouts._numbers import TensorNumbers
from ..layouts._solve import have_same_rows, solve
from ..pairing._correspondence import Anchor, Correspondence, size_of
from ..pairing._outputs import have_equal_numbers
from ..pairing._places import place_of
from ..pairing._values import equal_values, match_values, matched_values
from ..runs._execution import Execution, Tensors

Key = tuple[str, Shape, Shape]  # a weight of B without the numbers of layers, or "" for any; the shapes in A and in B
Orders = Mapping[Key, Layout | None]  # None if they differ
_ENOUGH = 2  # operations whose operands are arranged alike: the order of a single one may be wrong
_EXACT = 1e-10  # differences above this are no rounding of float64


class PatchedRun:
    """The last run of B, and which of its values are A's; at first the run without numbers of A.

    Args:
        pairs: the values and anchors of a run of each implementation.

    Attributes:
        pairs: these.
        reference: the run of A.
        actual: the run of B.
        values: the values of B in the last run, by name.
        found: those whose numbers are all numbers of A.
        matches: where they are in the values of A.
        owners: the values of A that have numbers of each value of B, by its name; also weights and inputs of both.
        operands: the operands of anchors in the last run; empty before the first one.
        forced: the numbers that take the place of values of B, for those who read them.
        guessed: of these, the values of A whose order in B no other place confirms.
    """

    def __init__(self, pairs: Correspondence) -> None:
        self.pairs = pairs
        self.reference, self.actual = pairs.reference.execution, pairs.actual.execution
        self.values: dict[str, torch.Tensor] = dict(self.actual.values)
        self.found = set(pairs.found_in_reference)
        self.matches = dict(pairs.from_reference)
        self.owners = dict(pairs.owners)
        self.operands: dict[str, torch.Tensor] = {}
        self.forced: dict[str, torch.Tensor] = {}
        self.guessed: dict[str, torch.Tensor] = {}

    @cached_property
    def outputs(self) -> list[str]:
        """The values of B that are outputs and can be judged."""
        judged = {*self.pairs.actual.recognizable, *self.pairs.plain_outputs} & self.actual.graph.producer.keys()
        outputs = dict.fromkeys(self.actual.roots[name] for name in self.actual.graph.outputs)
        return [name for name in outputs if name in judged]

    @cached_property
    def routed(self) -> frozenset[str]:
        """The values of B whose rows are selected by other values, so that A may have them in another order.

        A scatter moves them back to their places.
        """
        routed: set[str] = set()
        for node in self.actual.graph.nodes:
            routing = node.operator.routing
            if routing == "order" or (routing != "scatter" and not routed.isdisjoint(node.reads)):
                routed.update(node.outputs)
        return frozenset(routed)

    def is_right(self, name: str) -> bool:
        """Whether a value of B is one of A, a weight or an input."""
        return self.actual.is_right(name, self.found)

    def is_known(self, name: str) -> bool:
        """Whether a value of A is in B, as B has computed it."""
        return any(name in items for items in self.owners.values())

    def roots(self, node: Node) -> list[str]:
        """Return the roots of the values and weights that an operation of B reads."""
        return self.actual.roots_read_by(node)

    def owners_of(self, name: str) -> frozenset[str]:
        """Return the values of A that have numbers of the root of a value of B; also weights and inputs."""
        return self.owners.get(self.actual.roots[name], frozenset())

    def is_as_forced(self, name: str, values: Tensors) -> bool:
        """Whether B computes the numbers that take the place of a value.

        Args:
            name: the value.
            values: what B has computed, by name.
        """
        return _equal(values[name], self.forced[name])

    def run_again(self) -> list[str]:
        """Run B with the forced numbers, and return the values that are wrong.

        If some are, it runs with the numbers of A in place of all that are equal, until no more are: differences of
        rounding do not add up then.
        """
        wrong, count = self._run_with({}), 0
        while wrong and len(self.found) > count:
            count = len(self.found)
            exact = equal_values(matched_values(self.matches, self.reference.values), self.values)
            pairs = ((self.values[name], number) for name, number in exact.items())
            if all(TensorNumbers(number).closeness(_EXACT).holds(value, number) for value, number in pairs):
                break
            wrong = self._run_with(exact)
        return wrong

    def _run_with(self, given: Tensors) -> list[str]:
        """Run B with the forced numbers, and others where none is forced; return the wrong values: none if it can't."""
        operands = {anchor.operand for anchor in self.pairs.anchors}
        wanted = {*self.pairs.actual.recognizable, *self.forced, *operands, *self.pairs.plain_outputs}
        values = self._values_with(given, wanted)
        if values is None:
            return []
        changed = {
            name: TensorNumbers(value)
            for name, value in values.items()
            if name in self.pairs.actual.recognizable and not torch.equal(value, self.values[name])
        }
        self._judge(changed)
        plain = self.pairs.plain_outputs
        self.found -= plain.keys()
        self.found |= {name for name, right in plain.items() if name in values and _equal(values[name], right)}
        left = {name: numbers for name, numbers in changed.items() if name not in self.found}
        self.found.update(self.pairs.without_bias(left))
        self.operands = {name: value for name, value in values.items() if name in operands}
        self.values |= {name: numbers.tensor for name, numbers in changed.items()}
        wrong = [name for name in self.forced if name in values and not self.is_as_forced(name, values)]
        return wrong + [name for name in self.outputs if name not in self.found]

    def _values_with(self, given: Tensors, wanted: Collection[str]) -> Tensors | None:
        """Return wanted values of a run; None if B can't run again.

        Where B computes a guessed number in another order, its own order is as good: the guess is dropped.
        """
        run_again = self.actual.run_again
        if run_again is None:
            return None
        values = run_again({**given, **self.forced}, wanted)
        while reordered := [name for name in self.guessed if name in values and self._is_reordered(name, values[name])]:
            for name in reordered:
                del self.forced[name], self.guessed[name]
            values = run_again({**given, **self.forced}, wanted)
        return values

    def _judge(self, changed: Mapping[str, TensorNumbers]) -> None:
        """Find which values of B that have changed since the last run are A's now."""
        matches = match_values(self.pairs.actual, self.pairs.reference, changed)
        same = {name for name in self.found & changed.keys() if _equal(self.values[name], changed[name].tensor)}
        self.found = (self.found - changed.keys()) | same | matches.keys() | self._joined(changed)
        self.owners |= {name: frozenset(match.source for match in found) for name, found in matches.items()}
        self.matches |= matches
        for name in changed.keys() - matches.keys() - same:
            self.owners.pop(name, None)
            self.matches.pop(name, None)

    def _is_reordered(self, name: str, value: torch.Tensor) -> bool:
        """Whether a value of B has the numbers of the value of A that was put in its place, in another order."""
        if _equal(value, self.forced[name]):
            return False
        numbers, guess = TensorNumbers(value), TensorNumbers(self.guessed[name])
        return solve(numbers, guess) is not None or have_same_rows(numbers, guess)

    def _joined(self, changed: Mapping[str, TensorNumbers]) -> set[str]:
        """Return the changed results of joined weights that hold all the results of A which they join."""
        anchors, found = self.pairs.anchors, set()
        for name in {anchor.node.outputs[0] for anchor in anchors if not anchor.whole} & changed.keys():
            sources = {anchor.reference.outputs[0] for anchor in anchors if anchor.node.outputs[0] == name}
            values = (TensorNumbers(self.reference.values[source]) for source in sources)
            if all(solve(value, changed[name]) is not None for value in values):
                found.add(name)
        return found


def _equal(value: torch.Tensor, number: torch.Tensor) -> bool:
    """Whether two tensors have the same numbers in the same order but for rounding, in whatever shapes."""
    if value.numel() != number.numel():  # rows that other values select
        return False
    return have_equal_numbers(value.reshape(-1), number.reshape(-1))


class Operands:
    """The operands of all anchors, as the operations read them.

    Anchors are operations of B and A that read the same weight; an operand is the value that one reads besides.

    Args:
        pairs: the executions with their anchors.
        found: the values of B whose numbers are those of A; None for those of the run itself.
        actual: the operands of B by name, as computed in another run; None for those of the run itself.
    """

    def __init__(
        self, pairs: Correspondence, found: Collection[str] | None = None, actual: Tensors | None = None
    ) -> None:
        self._pairs = pairs
        self._reference_run, self._actual_run = pairs.reference.execution, pairs.actual.execution
        self._found = pairs.found_in_reference if found is None else found
        if actual is not None:
            self.actual = actual

    @cached_property
    def reference(self) -> Tensors:
        """The operands of A, by name; empty if A can't run again."""
        run_again = self._reference_run.run_again
        return {} if run_again is None else run_again({}, {item.reference_operand for item in self._pairs.anchors})

    @cached_property
    def actual(self) -> Tensors:
        """The operands of B, by name; empty if B can't run again."""
        run_again = self._actual_run.run_again
        return {} if run_again is None else run_again({}, {item.operand for item in self._pairs.anchors})

    @cached_property
    def orders(self) -> Orders:
        """How operands of A are arranged in B, from the anchors at which B is right: the usual order of a weight.

        Any weights have an order only if it is the same for all.
        """
        return {
            key: counts.most_common(1)[0][0] if key[0] or len(counts) == 1 else None
            for key, counts in self._counts.items()
        }

    @cached_property
    def _counts(self) -> Mapping[Key, Counter[Layout]]:
        """How many operands of the anchors at which B is right are arranged in each way."""
        layouts: dict[Key, dict[str, Layout]] = {}  # of each operand
        for anchor in self._pairs.anchors:
            pair = self._pair(anchor)
            is_right = {self._actual_run.roots[anchor.operand], anchor.node.outputs[0]}.issubset(self._found)
            if pair is None or not is_right or pair[0].numel() != pair[1].numel():
                continue
            reference, actual = pair
            layout = solve(TensorNumbers(actual), TensorNumbers(reference))
            if layout is not None:
                for key in _keys(reference, actual, place_of(anchor.weight)):
                    layouts.setdefault(key, {})[anchor.operand] = layout
        return {key: Counter(found.values()) for key, found in layouts.items()}

    def expected(self, anchor: Anchor) -> torch.Tensor | None:
        """Return the operand of A in the shape and order of B; None if the order is not known.

        Without evidence of the order, A's value is moved as B moves its own, unless B is wrong with that order and
        right with A's operand.
        """
        pair = self._pair(anchor)
        if pair is None:
            return None
        moved = self._moved(anchor, pair[1]) if self.is_guessed(anchor) else None
        if moved is not None and not (self._has_wrong_result(anchor) and self._is_right_with(anchor, pair[0])):
            return moved
        return arranged(*pair, self.orders, place_of(anchor.weight))

    def _has_wrong_result(self, anchor: Anchor) -> bool:
        """Whether an operation of B computes something else than A from A's numbers, which may be in another order."""
        return self._actual_run.roots[anchor.operand] in self._found and anchor.node.outputs[0] not in self._found

    def in_order_of(self, reference: str, actual: str) -> torch.Tensor | None:
        """Return the numbers of a value of A in the shape of a value of B; None if their order is not known."""
        value, shaped = self._root_values(reference, actual)
        return None if value is None or shaped is None else arranged(value, shaped, self.orders)

    def _root_values(self, reference: str, actual: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return what a value of A and one of B were moved from; None for what is no computed value."""
        reference_run, actual_run = self._reference_run, self._actual_run
        return reference_run.values.get(reference_run.roots[reference]), actual_run.values.get(actual_run.roots[actual])

    def _moved(self, anchor: Anchor, operand: torch.Tensor) -> torch.Tensor | None:
        """Return the operand of A in the order that B's movements, such as reshape or transpose, give to its operand.

        Args:
            anchor: the operations that read the operands.
            operand: the operand of B, as it is read.

        Returns:
            A's value behind the operand, moved like B's; None if the sizes do not tell how it is arranged.
        """
        reference, actual = self._root_values(anchor.reference_operand, anchor.operand)
        if reference is None or actual is None:
            return None
        ordered = _with_sizes(reference, tuple(actual.shape))
        layout = solve(TensorNumbers(operand), TensorNumbers(actual))
        return None if ordered is None or layout is None else layout.select(ordered).reshape(operand.shape).clone()

    def is_guessed(self, anchor: Anchor) -> bool:
        """Whether the order of the expected operand is not that of several operations of the same kind."""
        pair = self._pair(anchor)
        if pair is None:
            return True
        counts = self._counts.get(_keys(*pair, place_of(anchor.weight))[0], Counter())
        return max(counts.values(), default=0) < _ENOUGH

    def is_misplaced(self, anchor: Anchor) -> bool:
        """Whether the operand of B has the numbers of A, but in another order than it is expected to have."""
        expected = self.expected(anchor)
        if expected is None:
            return False
        actual = self.actual[anchor.operand]
        closeness = TensorNumbers(expected).closeness(RELATIVE)
        is_equal = closeness.holds(actual.reshape(-1), expected.reshape(-1))
        if is_equal or solve(TensorNumbers(actual), TensorNumbers(expected)) is None:
            return False
        return not self.is_guessed(anchor) or self._is_right_with(anchor, expected)

    def _is_right_with(self, anchor: Anchor, operand: torch.Tensor) -> bool:
        """Whether the operation of B computes A's result from an operand."""
        run_again, output = self._actual_run.run_again, anchor.node.outputs[0]
        reference = self._reference_run.values.get(anchor.reference.outputs[0])
        shape = self.actual[anchor.operand].shape
        if run_again is None or reference is None or not anchor.whole or operand.shape != shape:
            return False
        result = run_again({anchor.operand: operand}, {output}).get(output)
        return result is not None and solve(TensorNumbers(result), TensorNumbers(reference)) is not None

    def _pair(self, anchor: Anchor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the operands of A and of B; None if one is not known, or they are integers."""
        reference, actual = self.reference.get(anchor.reference_operand), self.actual.get(anchor.operand)
        if reference is None or actual is None or not reference.is_floating_point():
            return None
        return reference, actual


def _keys(reference: torch.Tensor, actual: torch.Tensor, place: str) -> list[Key]:
    """Return the keys of `Orders` for two values: at a weight (see `place_of`), and at any."""
    return [(name, tuple(reference.shape), tuple(actual.shape)) for name in (place, "")]


def _with_sizes(tensor: torch.Tensor, shape: Shape) -> torch.Tensor | None:
    """Return a tensor in a shape: with some dimensions joined or split, or else permuted, if the sizes tell how."""
    if tensor.numel() != math.prod(shape):
        return None
    sizes, wanted = long_sizes(tensor.shape), long_sizes(shape)
    if are_regrouped(sizes, wanted):
        return tensor.reshape(shape).clone()
    if sorted(sizes) != sorted(wanted) or len({*sizes}) < len(sizes):
        return None
    return tensor.reshape(sizes).permute([sizes.index(size) for size in wanted]).reshape(shape)


def arranged(reference: torch.Tensor, actual: torch.Tensor, orders: Orders, place: str = "") -> torch.Tensor | None:
    """Return the numbers of a value of A in the shape of a value of B; None if their order is not known.

    Args:
        reference: the value of A.
        actual: the value of B.
        orders: how operands of A are arranged in B; without any, the sizes of the dimensions have to tell.
        place: the weight that reads the values, without the numbers of layers; `""` for any.
    """
    if reference.numel() != actual.numel():
        return None
    for key in _keys(reference, actual, place):
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
        sizes = {read: size_of(execution, read) for read in node.reads if execution.roots[read] in execution.values}
        if node.operator.kind == "add" and sum(count > 1 for count in sizes.values()) > 1:
            return name
        same = [read for read, count in sizes.items() if count == size]
        if size < 2 or len(same) != 1:
            return None
        name = same[0]
    return None
