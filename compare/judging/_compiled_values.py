"""Judge the values that only a compiled graph has."""

from ..float64 import RoundingVerdict
from ._pair import Pair
from ._rule import Rest, Rule


class CompiledValues(Rule):
    """A value that only the compiled graph has is judged by the float64 values of that graph.

    They take two more runs of the model, so they are for values that exceed the tolerance.
    """

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        verdict, facts = rest(pair), self.facts
        is_known = pair.name != pair.exported_name or pair.name in facts.program.exported.values
        if verdict is not None or not pair.differs or is_known or facts.compiled is None:
            return verdict
        float64 = facts.compiled()
        verdict = rest(pair.supposing(float64.get(pair.name), pair.reference))
        if float64.changed_decisions and not (verdict is not None and verdict.sound):
            verdict = rest(pair.supposing(float64.get_with_changed_decisions(pair.name), pair.reference))
        return verdict
