"""Judge nodes by themselves: on their reference inputs, so that they inherit no error."""

import math
from dataclasses import replace

import torch

from ..float64._verdict import RoundingVerdict, Verdict, identical_verdict, largest_distance
from ..metrics._metrics import Difference
from ..metrics._tolerance import is_quantized
from ._pair import Pair
from ._rule import LaterRules, Rule

# A node whose value is suspicious in the whole run and by itself is wrong from this ratio by itself on, if the product
# of both ratios is as large as this. Kernels sum in different orders: correct sums are up to 4.6 levels off.
_CONFIRMED, _CONFIRMED_SUM, _CONFIRMED_PRODUCT = 2.5, 6.0, 7.5
_COARSER = 2.0**10  # between the rounding levels of two precisions


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
