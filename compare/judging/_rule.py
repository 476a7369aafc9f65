"""What a rule is."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from ..float64._verdict import RoundingVerdict
from ._facts import RunFacts
from ._pair import Pair

LaterRules = Callable[[Pair], RoundingVerdict | None]  # asks the rules after one, which see the pair that it is given


class Rule(ABC):
    """One rule by which values are judged.

    Args:
        facts: what is known of the run.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts

    @abstractmethod
    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict on a value; None if it can't be judged.

        Args:
            pair: the value and what it should be.
            later_rules: returns the verdict of the rules after this one, on the same pair or another.
        """
