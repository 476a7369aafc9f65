"""`PatchedRun`: B, run again with numbers of A in place of some of its own.

The root of a value is the one from which it was only moved, by a reshape or a transpose, say (see `Execution.roots`).
Anchors are operations of B and A that read the same weight, and their operands what they read besides.
"""

from collections.abc import Collection, Mapping
from functools import cached_property

import torch

from filch.export import Node

from ..layouts._numbers import TensorNumbers
from ..layouts._solve import have_same_rows, solve
from ..runs._execution import Tensors
from ._correspondence import Correspondence
from ._outputs import have_equal_numbers
from ._values import equal_values, match_values, matched_values

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
