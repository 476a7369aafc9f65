"""Find the errors that a run and the model have in common."""

from dataclasses import replace

from ..float64 import RoundingVerdict
from ..float64._verdict import BOTH_WRONG, UNRELIABLE, shares_error
from ..metrics._metrics import replace_masks
from ._facts import RunFacts
from ._pair import Pair
from ._rule import Rest, Rule


class SharedErrors(Rule):
    """A node is wrong by itself if its value agrees with the model's although both are far from float64.

    In the whole run, rounding errors may have grown that far: the value becomes a suspect, if what it is computed from
    is near float64.
    """

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._off: set[str] = set()

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        shared, reads_right = self._shared(pair, rest), self._off.isdisjoint(pair.node.reads)
        if shared is not None and reads_right:
            self.facts.suspects.add(pair.name)
        if shared is not None or not reads_right:
            self._off.add(pair.name)
        return rest(pair) if shared is None or not self.facts.is_isolated else shared

    def _shared(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """Return the verdict on a value that is as far from float64 as its reference; None for any other."""
        reference, exact = pair.reference, pair.exact
        if reference is None or exact is None or not shares_error(pair.tensor, reference, exact):
            return None
        if exact.value.shape == pair.tensor.shape:  # the lowest number of the dtype masks as well as -inf
            masked = replace(exact, value=replace_masks(exact.value, pair.tensor))
            if not shares_error(pair.tensor, reference, masked):
                return None
        if self.facts.hidden_in(pair.exported_name):  # in fused nodes and folded constants: rounding may decide them
            return None
        by_model = rest(pair.supposing(exact, reference))
        if by_model is not None and not by_model.sound:
            return None
        verdict = rest(pair.supposing(exact, None))
        if verdict is None or verdict.verdict != "wrong" or verdict.ratio <= UNRELIABLE:
            return None
        return replace(verdict, note=BOTH_WRONG)
