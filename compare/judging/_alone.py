"""Judge nodes by themselves: on their reference inputs, so that they inherit no error."""

import math

import torch

from ..float64 import RoundingVerdict, Verdict, confirmed_verdict, identical_verdict, largest_distance
from ..metrics._metrics import Difference
from ..metrics._tolerance import is_quantized
from ._pair import Pair
from ._rule import Rest, Rule


class ByTolerance(Rule):
    """The tolerance judges values without a float64 value, and quantized ones: their error is relative to their step.

    It does not override float64, which found only rounding in the whole run.
    """

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        verdict = None if is_quantized(pair.tolerance) else rest(pair)
        if verdict is not None or pair.measure is None or pair.reference is None:
            return verdict
        if pair.whole is not None and pair.whole.sound:
            return None
        return tolerance_verdict(pair.measure(pair, pair.reference), pair.spread)


class Confirmed(Rule):
    """A node is wrong if its value is suspicious by itself and in the whole run."""

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        verdict = rest(pair)
        if verdict is None or pair.whole is None:
            return verdict
        return confirmed_verdict(verdict, pair.whole, sums=self.facts.sums(pair.node))


def tolerance_verdict(difference: Difference, spread: torch.Tensor | None) -> RoundingVerdict:
    """Return the verdict by tolerance on a value without a float64 reference."""
    distance = largest_distance(spread)
    if difference.problem or difference.nonfinite:
        return RoundingVerdict("wrong", math.inf, math.inf, spread=distance, note=difference.problem or "not finite")
    if not difference.absolute:
        return identical_verdict(spread)
    ratio = difference.excess if math.isfinite(difference.excess) else difference.scale
    unstable = distance is not None and 0 < difference.absolute <= 2 * distance
    verdict: Verdict = "rounding" if difference.close else "unstable" if unstable else "wrong"
    note = "judged by tolerance: no float64 reference"
    return RoundingVerdict(verdict, ratio, difference.absolute, spread=distance, note=note)
