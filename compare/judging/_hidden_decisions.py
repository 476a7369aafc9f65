"""Judge values by the decisions that fused nodes keep to themselves."""

from dataclasses import replace

import torch

from ..float64 import Float64Value, RoundingVerdict, flips_of
from ._pair import Pair
from ._rule import Rest, Rule


class HiddenDecisions(Rule):
    """The value of a fused node may follow from another decision that the node does not return.

    The value shows it: each near-tie is decided so that what float64 computes from it is nearest to the value.
    """

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        verdict = rest(pair)
        is_sound = verdict is not None and verdict.sound
        if not pair.observed or is_sound or not self.facts.wrong.isdisjoint(pair.node.reads):
            return verdict
        explained = (self._explained_by(name, pair, rest) for name in self.facts.hidden_in(pair.exported_name))
        return next(filter(None, explained), verdict)

    def _explained_by(self, name: str, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """Return the verdict on a value by a decision as it shows it; None if this does not explain the value."""
        facts, decisions = self.facts, self.facts.decisions
        source = decisions.values or facts.float64
        decided, decision = source.get(pair.exported_name), source.get(name)
        tie = None if decision is None else facts.numbers.near_tie(name, decision.value, facts.compared)
        flipped = None if tie is None else self._with_decision(name, tie.flipped, pair)
        if decided is None or tie is None or flipped is None:
            return None
        own = tie.shown_by(pair.tensor, decided.value, flipped.value)
        chosen = None if own is None else torch.where(own, tie.other, tie.decision)
        exact = None if chosen is None else self._with_decision(name, chosen, pair)
        if own is None or chosen is None or exact is None:
            return None
        expected = pair.rounded(exact)
        verdict = rest(pair.supposing(exact, expected))
        if verdict is None or not verdict.sound:
            return None
        if not facts.is_isolated:  # there, nodes read what the model decides
            decisions.add_hidden(pair.name, name, chosen)
        models = None if pair.reference is None else tie.shown_by(pair.reference, decided.value, flipped.value)
        differs = own if models is None else own ^ models
        if not bool(differs.any()):  # float64 alone decides otherwise
            return verdict
        if not facts.is_isolated:
            decisions.add_flip(pair.name, name)
        verdict = decisions.with_change(verdict, pair, expected)
        return replace(verdict, verdict="decision", flips=flips_of(tie.margins, differs))

    def _with_decision(self, name: str, decision: torch.Tensor, pair: Pair) -> Float64Value | None:
        """Return what float64 computes for a value from a further decision of the run."""
        values = self.facts.decisions.with_decision(name, decision)
        return None if values is None else values.get(pair.exported_name)
