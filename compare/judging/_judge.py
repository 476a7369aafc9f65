"""`Judge`: the rules, in their order."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from filch.export import Node

from ..float64._verdict import RoundingVerdict
from ._alone import ByTolerance, Confirmed
from ._facts import RunFacts
from ._open_choices import AnyOrder, NearTies, SelectedIndices
from ._other_decisions import AnotherRun, Following, HiddenDecisions, OtherDecisions
from ._own_decisions import OwnDecisions
from ._pair import Pair
from ._rounding import CompiledValues, Rounding, Same
from ._rule import Rule
from ._suspects import RoundedOperands, SharedErrors

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
        """Return the verdict on a value; None if there is no float64 value to compare it with.

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
        return self._judge(0, Pair(name, exported_name, node, tensor, reference, exact, spread, **known))

    def _judge(self, position: int, pair: Pair) -> RoundingVerdict | None:
        """Return the verdict of the rules from a position on; a hypothetical pair is left to `NUMBER_RULES`."""
        position = max(position, len(RULES)) if pair.is_hypothetical else position
        if position == len(self._rules):
            return None
        return self._rules[position].judge(pair, partial(self._judge, position + 1))
