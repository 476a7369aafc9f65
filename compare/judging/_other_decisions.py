"""Judge values by the decisions before them: integers and booleans computed from numbers (see `Decisions`)."""

import math
from dataclasses import replace

import torch

from ..float64._decision_values import differ
from ..float64._margins import flips_of
from ..float64._noise import unit_of
from ..float64._verdict import Float64Value, RoundingVerdict
from ._facts import LaterRules, Rule
from ._run import Pair


class AnotherRun(Rule):
    """An output of a run without instrumentation may follow from other decisions in near-ties, which are not known.

    NaN and infinity are no near-ties.
    """

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules, `suspicious` in place of `wrong` if other decisions may explain it."""
        verdict = later_rules(pair)
        if pair.observed or verdict is None or verdict.verdict != "wrong":
            return verdict
        may_be_decided = pair.is_decision or math.isfinite(verdict.ratio)
        if not may_be_decided or not self.facts.decisions.affect(pair.name):
            return verdict
        note = "the run without instrumentation may have made other decisions in near-ties"
        return replace(verdict, verdict="suspicious", note=note)


class Following(Rule):
    """Later values may follow from this one if it is a decision that is right, or if it is wrong."""

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules, and record what it says about the values that follow from this one."""
        verdict, facts = later_rules(pair), self.facts
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
        if verdict.verdict == "same" and pair.reference is not None:
            facts.equal.add(pair.name)
        if verdict.verdict in ("wrong", "unstable"):
            facts.wrong.add(pair.name)
        return verdict


class HiddenDecisions(Rule):
    """The value of a fused node may follow from another decision that the node does not return.

    The value shows it: each near-tie is decided so that what float64 computes from it is nearest to the value.
    """

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules, or one by a hidden decision that explains the value.

        Values of other runs, and of nodes that read wrong values, are not explained.
        """
        verdict = later_rules(pair)
        is_sound = verdict is not None and verdict.sound
        if not pair.observed or is_sound or not self.facts.wrong.isdisjoint(pair.node.reads):
            return verdict
        explained = (self._explained_by(name, pair, later_rules) for name in self.facts.hidden_in(pair.exported_name))
        return next(filter(None, explained), verdict)

    def _explained_by(self, name: str, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
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
        verdict = later_rules(pair.hypothetical(exact, expected))
        if verdict is None or not verdict.sound:
            return None
        if not facts.is_isolated:  # there, nodes read what the model decides
            decisions.add_hidden(pair.name, name, chosen)
        models = None if pair.reference is None else tie.shown_by(pair.reference, decided.value, flipped.value)
        differs = own if models is None else own ^ models  # where the run and the model decide differently
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


class OtherDecisions(Rule):
    """A value may follow from decisions before it that rounding has changed.

    These are those of the run, as far as they are known; noise changes the other ones.
    """

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules by the decisions of the model, of the run or of noise.

        They are tried in this order until one of the verdicts is sound.
        """
        facts, name, verdict = self.facts, pair.exported_name, later_rules(pair)
        facts.numbers.add_reference(name, pair.reference)
        if verdict is not None and verdict.sound and not pair.is_decision:
            facts.noise.record_unaffected(name)
        if verdict is not None and verdict.verdict == "same":
            return verdict
        are_unknown = not pair.observed or facts.noise.may_affect(name)  # further decisions may differ
        values = facts.decisions.values if facts.decisions.affect(pair.name) else None
        exact = None if values is None else values.get(name)
        if exact is not None:
            expected = pair.rounded(exact)
            other = later_rules(pair.hypothetical(exact, expected))
            if other is not None and (other.sound or not are_unknown):
                facts.numbers.add_reference(name, expected)
                return facts.decisions.with_change(other, pair, expected)
        if not are_unknown or (verdict is not None and verdict.sound):
            return verdict
        changed = later_rules(pair.hypothetical(facts.float64.get_with_changed_decisions(name), pair.reference))
        return verdict if changed is None else changed
