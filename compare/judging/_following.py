"""Record what the values after a value follow from."""

import math
from dataclasses import replace

from ..float64 import RoundingVerdict, differ, unit_of
from ._pair import Pair
from ._rule import Rest, Rule


class AnotherRun(Rule):
    """An output of a run without instrumentation may follow from other decisions in near-ties, which are not known.

    NaN and infinity are no near-ties.
    """

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        verdict = rest(pair)
        if pair.observed or verdict is None or verdict.verdict != "wrong":
            return verdict
        may_be_decided = pair.is_decision or math.isfinite(verdict.ratio)
        if not may_be_decided or not self.facts.decisions.affect(pair.name):
            return verdict
        note = "the run without instrumentation may have made other decisions in near-ties"
        return replace(verdict, verdict="suspicious", note=note)


class Following(Rule):
    """Later values may follow from this one if it is a decision that is right, or if it is wrong."""

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        verdict, facts = rest(pair), self.facts
        if verdict is None or not pair.observed:
            return verdict
        is_accepted = (verdict.sound or verdict.verdict == "suspicious") and not facts.is_isolated
        if pair.is_decision and is_accepted:
            reference, unit = pair.reference, unit_of(pair.tensor.dtype)
            matches_model = reference is not None and not differ(pair.tensor, reference, unit)
            if facts.decisions.add(pair.name, pair.exported_name, pair.tensor, matches_model=matches_model):
                facts.noise.record_unaffected(pair.exported_name)
                if verdict.flips is not None:
                    facts.decisions.add_flip(pair.name, pair.name)
        if verdict.verdict in ("wrong", "unstable"):
            facts.wrong.add(pair.name)
        return verdict
