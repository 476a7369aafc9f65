"""Judge values by the decisions that they are computed from."""

from ..float64 import RoundingVerdict
from ._pair import Pair
from ._rule import Rest, Rule


class OtherDecisions(Rule):
    """A value may follow from decisions before it that rounding has changed.

    These are those of the run, as far as they are known; noise changes the other ones.
    """

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        facts, name, verdict = self.facts, pair.exported_name, rest(pair)
        facts.numbers.add_reference(name, pair.reference)
        if verdict is not None and verdict.sound and not pair.is_decision:
            facts.noise.record_unaffected(name)
        if verdict is not None and verdict.verdict == "same":
            return verdict
        are_unknown = not pair.observed or facts.noise.may_affect(name)
        values = facts.decisions.values if facts.decisions.affect(pair.name) else None
        exact = None if values is None else values.get(name)
        if exact is not None:
            expected = pair.rounded(exact)
            other = rest(pair.supposing(exact, expected))
            if other is not None and (other.sound or not are_unknown):
                facts.numbers.add_reference(name, expected)
                return facts.decisions.with_change(other, pair, expected)
        if not are_unknown or (verdict is not None and verdict.sound):
            return verdict
        changed = rest(pair.supposing(facts.float64.get_with_changed_decisions(name), pair.reference))
        return verdict if changed is None else changed
