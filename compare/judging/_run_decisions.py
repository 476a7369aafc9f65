"""Follow the decisions of a run that are not those of the model and of float64."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from ..float64._decision_values import differ
from ..float64._values import Float64Values
from ..float64._verdict import Float64Value, RoundingVerdict
from ._run import Pair


class RunDecisions:
    """The decisions (see `Decisions`) of a run that the model or float64 makes differently, and what follows from them.

    What is computed from such a decision differs from the model's value, or from its float64 value, by far more than
    rounding, and is right nevertheless.

    Args:
        float64: the values as float64 decides.
        floats: the names of the floating-point inputs and weights of the run.
        known: all decisions of the run by their exported names, if some differ and they are known from the beginning.

    Attributes:
        values: the float64 values as the run decides; None as long as all decide alike.
    """

    def __init__(
        self, float64: Float64Values, floats: Iterable[str], known: Mapping[str, torch.Tensor] = MappingProxyType({})
    ) -> None:
        self.values: Float64Values | None = None
        self._float64 = float64
        self._decisions: dict[str, torch.Tensor] = {}
        self._affected: set[str] = set()  # names in the run of such decisions and of what follows from them
        self._flips: dict[str, dict[str, None]] = {}  # the decisions that differ from the model's, by what follows
        self._from_floats = {*floats}
        if known:
            self._decisions |= known
            self.values = float64.with_decisions(known)

    def follow(self, name: str, reads: Collection[str], dtype: torch.dtype) -> None:
        """Record what a value is computed from; call it for each value in the order of execution.

        Args:
            name: the name of the value in the run.
            reads: the names of what its node reads.
            dtype: its dtype.
        """
        if dtype.is_floating_point or dtype.is_complex or not self._from_floats.isdisjoint(reads):
            self._from_floats.add(name)
        if not self._affected.isdisjoint(reads):
            self._affected.add(name)
            if flips := {flip: None for item in reads for flip in self._flips.get(item, ())}:
                self._flips[name] = flips

    def affect(self, name: str) -> bool:
        """Return whether a value is computed from such a decision."""
        return name in self._affected

    def with_change(self, verdict: RoundingVerdict, pair: Pair, expected: torch.Tensor) -> RoundingVerdict:
        """Return a verdict with the part of the difference from the model that such decisions before a value explain.

        Args:
            verdict: the verdict.
            pair: the value beside what the model has.
            expected: what it is with the decisions of the run.
        """
        flips, reference = (*self._flips.get(pair.name, ()),), pair.reference
        if not flips or reference is None:
            return verdict
        if expected.shape != reference.shape:
            return replace(verdict, decided=math.inf, follows=flips)
        differs = torch.ne(expected, reference)  # infinite masks have no difference
        distance = (expected.double() - reference.double())[differs].abs().nan_to_num(nan=math.inf, posinf=math.inf)
        return replace(verdict, decided=float(distance.max()) if distance.numel() else 0.0, follows=flips)

    def add_flip(self, name: str, decision: str) -> None:
        """Record that a decision, which was added, differs from the model's for no earlier reason.

        Args:
            name: the name in the run of the first value that shows it: the decision itself, or what a node makes of it.
            decision: its name.
        """
        self._flips[name] = self._flips.get(name, {}) | {decision: None}

    def add(self, name: str, exported_name: str, decision: torch.Tensor, *, matches_model: bool) -> bool:
        """Add a decision of the run that is right, so that `values` are computed from it if it is not that of float64.

        A decision that is not computed from floating-point numbers, or that the model and float64 make alike before any
        other one, changes nothing.

        Args:
            name: its name in the run.
            exported_name: its name in the exported graph.
            decision: its numbers.
            matches_model: whether they are those of the model.

        Returns:
            whether `values`, or the float64 values if there are none, are computed from it; False if float64 can't
            compute from other decisions.
        """
        if name not in self._from_floats:
            return True
        if matches_model and name not in self._affected and matches_float64(decision, self._float64.get(exported_name)):
            return True
        if self.values is None:
            self.values = self._float64.with_decisions(self._decisions)
        if self.values is None:
            return False
        self._decisions[exported_name] = decision.clone()
        self._affected.add(name)
        return True

    def add_hidden(self, name: str, exported_name: str, decision: torch.Tensor) -> None:
        """Add a decision that the run keeps within a node.

        Args:
            name: the name in the run of the value that the node computes from it.
            exported_name: the name of the decision in the exported graph.
            decision: its numbers.
        """
        self._decisions[exported_name] = decision
        self._affected.add(name)
        self.values = self._float64.with_decisions(self._decisions)  # those so far are computed from another one

    def with_decision(self, exported_name: str, decision: torch.Tensor) -> Float64Values | None:
        """Return the values as they would be with a further decision."""
        return self._float64.with_decisions({**self._decisions, exported_name: decision})

    def release(self, exported_name: str) -> None:
        """Declare that a value will not be judged again."""
        if self.values is not None:
            self.values.release(exported_name)


def matches_float64(decision: torch.Tensor, exact: Float64Value | None) -> bool:
    """Return whether a decision is that of float64; True if that is not known."""
    return exact is None or not differ(decision, exact.value, exact.unit)
