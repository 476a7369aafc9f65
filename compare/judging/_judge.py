"""`Judge`: the rules, in their order, with those that judge by numbers and by the whole run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from filch.export import Node

from ..float64._noise import unit_of
from ..float64._reductions import reduction_length, running_length
from ..float64._verdict import RoundingVerdict, Verdict, identical_verdict, largest_distance, rounding_verdict
from ..metrics._metrics import Difference, are_equal, replace_masks
from ..metrics._tolerance import is_quantized
from ._facts import LaterRules, Rule, RunFacts
from ._open_choices import AnyOrder, NearTies, SelectedIndices
from ._other_decisions import AnotherRun, Following, HiddenDecisions, OtherDecisions
from ._own_decisions import ExactComparisons, OwnDecisions
from ._run import Pair
from ._suspects import RoundedOperands, SharedErrors

# A node whose value is suspicious in the whole run and by itself is wrong from this ratio by itself on, if the product
# of both ratios is as large as this. Kernels sum in different orders: correct sums are up to 4.6 levels off.
_CONFIRMED, _CONFIRMED_SUM, _CONFIRMED_PRODUCT = 2.5, 6.0, 7.5
_COARSER = 2.0**10  # between the rounding levels of two precisions
# Units of float32 that each addition of the same number adds to the rounding level. To the error, it adds up to 1/24
# of a unit in ONNX Runtime's kernels, and 1/6 in a plain loop, which is less than what is wrong.
_SYSTEMATIC = 1 / 16
_SAMPLE, _REPEATED = 2**12, 8  # elements that are looked at, and how often each number is among them on average


class ByTolerance(Rule):
    """The tolerance judges values without a float64 value, and quantized ones: their error is relative to their step.

    It does not override float64, which found only rounding in the whole run.
    """

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules; that of the tolerance if they have none, or the value is quantized.

        It is None without a `measure` or a reference, and if the verdict on the value in the whole run is sound.
        """
        verdict = None if is_quantized(pair.tolerance) else later_rules(pair)
        if verdict is not None or pair.measure is None or pair.reference is None:
            return verdict
        if pair.whole is not None and pair.whole.sound:
            return None
        return tolerance_verdict(pair.measure(pair, pair.reference), pair.spread)


class Confirmed(Rule):
    """A node that is suspicious by itself is wrong if its value in the whole run agrees."""

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules, which becomes `wrong` if the whole run confirms it."""
        verdict, whole = later_rules(pair), pair.whole
        if verdict is None or whole is None or not whole.verdict == verdict.verdict == "suspicious":
            return verdict
        if whole.error * verdict.ratio > _COARSER * verdict.error * whole.ratio:
            return verdict  # the value was computed from a lower precision, which the node's own operands do not have
        is_disputed = whole.disputed > 0 and verdict.disputed >= _CONFIRMED  # which the order of a sum doesn't explain
        is_large = is_disputed or verdict.ratio >= (_CONFIRMED_SUM if self.facts.sums(pair.node) else _CONFIRMED)
        if not is_large or verdict.ratio * whole.ratio < _CONFIRMED_PRODUCT:
            return verdict
        return replace(verdict, verdict="wrong", note="suspicious in the whole run, too")


class Same(Rule):
    """A value that is bitwise equal to the model's is right, whatever float64 computes."""

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return `same` for equal bits; else the verdict of the later rules."""
        tensor, expected = pair.tensor, None if largest_distance(pair.spread) else pair.expected
        if expected is not None and tensor.dtype == expected.dtype and are_equal(tensor, expected):
            return identical_verdict(pair.spread)
        return later_rules(pair)


class Rounding(Rule):
    """A value is right if its error relative to float64 is no more than rounding explains."""

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict by float64; that of the later rules if there is no such value of this shape and kind."""
        facts, tensor, reference, exact = self.facts, pair.tensor, pair.expected, pair.exact
        if exact is None or reference is None or exact.value.is_floating_point() != tensor.is_floating_point():
            return later_rules(pair)
        if not tensor.shape == reference.shape == exact.value.shape:
            return later_rules(pair)
        if facts.program.lower_precision:
            tensor = replace_masks(tensor, reference)
        units = facts.units.of(pair.name)
        # The noise in float64 has the units of the model's dtypes on the way to the value.
        exact = replace(exact, unit=units.model or exact.unit)
        unit = (units.run if pair.is_rounded else units.model) or exact.unit
        nodes = facts.program.computes(pair.node)
        length, sequential = (facts.longest_sum(nodes, count) for count in (reduction_length, running_length))
        if unit == facts.units.operand(pair.node):  # the sums themselves are finer
            length = sequential = 1
        judge = partial(
            rounding_verdict,
            tensor,
            reference,
            exact,
            unit=unit,
            reference_unit=units.reference,
            length=length,
            spread=pair.spread,
            is_step=pair.is_decision and facts.numbers.measures(pair.exported_name),
        )
        verdict = judge(sequential=sequential)
        is_sound = verdict is not None and verdict.sound
        if is_sound or unit > unit_of(torch.float32) or not self._sums_repeated_numbers(pair):
            return verdict
        return judge(sequential=max(sequential, int((length * _SYSTEMATIC) ** 2)))

    def _sums_repeated_numbers(self, pair: Pair) -> bool:
        """Return whether a node sums few different numbers, whose rounding errors have one sign and add up."""
        facts = self.facts
        given, program = facts.read_by(pair), facts.program
        sums = [
            item for item in program.computes(pair.node) if reduction_length(item, program.exported, program.shapes) > 1
        ]
        known = [self._is_repetitive(name, given) for item in sums for name in item.inputs[:2] if name]
        return any(known) and all(item is not False for item in known)  # None is not known

    def _is_repetitive(self, name: str, given: Mapping[str, torch.Tensor | None]) -> bool | None:
        """Return whether a value has few different numbers; None if it is not known, or has no floating-point ones."""
        exact, numbers = self.facts.float64.get(name), given.get(name)
        if numbers is None:
            numbers = self.facts.program.constant(name) if exact is None else exact.value
        if numbers is None or not numbers.is_floating_point():
            return None
        # An odd step does not divide the length of most rows, whose columns may differ.
        sample = numbers.reshape(-1)[:: numbers.numel() // _SAMPLE | 1]
        return len(torch.unique(sample)) * _REPEATED <= max(len(sample), _REPEATED)


class CompiledValues(Rule):
    """A value that only the compiled graph has is judged by the float64 values of that graph.

    They take two more runs of the model, so they are for values that exceed the tolerance.
    """

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules; if they have none, by the float64 values of the compiled graph."""
        verdict, facts = later_rules(pair), self.facts
        is_known = pair.name != pair.exported_name or pair.name in facts.program.exported.values
        if verdict is not None or not pair.differs or is_known or facts.compiled is None:
            return verdict
        float64 = facts.compiled()
        verdict = later_rules(pair.hypothetical(float64.get(pair.name), pair.reference))
        if float64.changed_decisions and not (verdict is not None and verdict.sound):
            verdict = later_rules(pair.hypothetical(float64.get_with_changed_decisions(pair.name), pair.reference))
        return verdict


_UNPROMOTED = {torch.uint16, torch.uint32, torch.uint64}  # which torch compares with no other dtype
# The first rule with an answer decides. A rule may ask those after it, also about another pair.
RULES: Sequence[type[Rule]] = (
    ByTolerance,
    Confirmed,
    CompiledValues,
    NearTies,
    SelectedIndices,
    SharedErrors,
    AnotherRun,
    Following,
    ExactComparisons,
    RoundedOperands,
    HiddenDecisions,
    OtherDecisions,
)
# These rules compare a value with one float64 value: its own, or another one that a rule above tries.
NUMBER_RULES: Sequence[type[Rule]] = (OwnDecisions, AnyOrder, Same, Rounding)


class Judge:
    """Decide for each value of a run whether its error exceeds rounding.

    The rounding unit is that of the value's dtype in the model, not in the run: an additional cast is an error. If
    lower precision is allowed, the unit is that of the coarsest dtype among the value and its ancestors.

    Args:
        facts: what is known of the run.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self._rules = [rule(facts) for rule in (*RULES, *NUMBER_RULES)]

    def verdict(
        self,
        name: str,
        node: Node,
        reference: torch.Tensor | None,
        tensor: torch.Tensor,
        spread: torch.Tensor | None = None,
        **known: Any,
    ) -> RoundingVerdict | None:
        """Return the verdict on a value; None if there is no float64 value to compare it with, or torch can't do that.

        Call it for each value in the order of execution, after `RunFacts.record`: a value may be judged by what float64
        computes from other decisions than those of the model (see `Decisions`), if the run has made them.

        Args:
            name: its name in the run.
            node: the node that computes it.
            reference: see `Pair`.
            tensor: see `Pair`.
            spread: see `Pair`.
            **known: further attributes of the `Pair`.
        """
        exported_name, float64 = self.facts.run.exported_name(name), self.facts.float64
        known["is_decision"] = float64.decides(exported_name, tensor)
        exact = float64.get(exported_name)
        tensors = (tensor, reference, None if exact is None else exact.value)
        dtypes = {item.dtype for item in tensors if item is not None}
        if len(dtypes) > 1 and dtypes & _UNPROMOTED:
            return None
        return self._judge(0, Pair(name, exported_name, node, tensor, reference, exact, spread, **known))

    def _judge(self, position: int, pair: Pair) -> RoundingVerdict | None:
        """Return the verdict of the rules from a position on; a hypothetical pair is left to `NUMBER_RULES`."""
        position = max(position, len(RULES)) if pair.is_hypothetical else position
        if position == len(self._rules):
            return None
        return self._rules[position].judge(pair, partial(self._judge, position + 1))


def tolerance_verdict(difference: Difference, spread: torch.Tensor | None) -> RoundingVerdict:
    """Return the verdict by tolerance on a value without a float64 value.

    Args:
        difference: how far the value is from its reference.
        spread: the largest difference of each element between repeated runs; None for one run.
    """
    distance = largest_distance(spread)
    if difference.problem or difference.nonfinite:
        return RoundingVerdict("wrong", math.inf, math.inf, spread=distance, note=difference.problem or "not finite")
    if not difference.absolute:
        return identical_verdict(spread)
    ratio = difference.excess if math.isfinite(difference.excess) else difference.scale  # inf if a limit is 0
    unstable = distance is not None and 0 < difference.absolute <= 2 * distance
    verdict: Verdict = "rounding" if difference.close else "unstable" if unstable else "wrong"
    note = "judged by tolerance: no float64 reference"
    return RoundingVerdict(verdict, ratio, difference.absolute, spread=distance, note=note)
