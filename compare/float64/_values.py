"""The float64 values of one run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from ._decision_values import is_decision
from ._verdict import Float64Value


class Float64Values(ABC):
    """The float64 values of one run, each also computed with noise.

    Attributes:
        problem: why a value could not be computed, or `""`.
        fully_cached: whether all values are still available.
        changed_decisions: the names of the decisions (see `Decisions`) that the noise changed in the values so far.
            They are changed in their own noisy value alone: what is computed from them reads the exact one.
        steps: the names of the floating-point values that are decisions.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.fully_cached = True
        self.changed_decisions: set[str] = set()
        self.steps: frozenset[str] = frozenset()

    def decides(self, name: str, value: torch.Tensor | list[Any]) -> bool:
        """Return whether a value may be a decision (see `Decisions`)."""
        return is_decision(value) or (name in self.steps and isinstance(value, torch.Tensor))

    def is_inner(self, name: str) -> bool:  # noqa: ARG002  for subclasses
        """Return whether a value is within an operation of the model, which does not return it."""
        return False

    @abstractmethod
    def get(self, name: str) -> Float64Value | None:
        """Return the float64 value of the value `name`, or None if there is none."""

    def get_with_changed_decisions(self, name: str) -> Float64Value | None:  # noqa: ARG002  for subclasses
        """Return a value whose noisy value is computed from the changed decisions; None if noise has changed none."""
        return None

    def with_decisions(self, decisions: Mapping[str, torch.Tensor]) -> "Float64Values | None":  # noqa: ARG002  as above
        """Return the values as computed from other decisions; None if they can't be computed again.

        Args:
            decisions: what later values are computed from, by name; more may be added before the values that depend on
                them are requested.
        """
        return None

    def reads(self, name: str) -> Sequence[str]:  # noqa: ARG002  as above
        """Return the names of what a value is computed from; empty if the noise changes no decisions."""
        return ()

    def unit(self, name: str) -> float:
        """Return half a unit in the last place of the value `name`, relative; 0 if it has none."""
        value = self.get(name)
        return 0.0 if value is None else value.unit

    def release(self, name: str) -> None:  # noqa: B027  for subclasses that keep values
        """Declare that a value will not be requested again."""


class RecordedValues(Float64Values):
    """Float64 values that were all computed before.

    Args:
        values: the values by name.
        problem: see `Float64Values`.
        reads: the names of what each value is computed from, by its name.
        affected: the names of the values that depend on a decision which noise changed.
        changed: the values with changed decisions, by name.
        steps: see `Float64Values`.
        compute: returns the values as computed from other decisions (see `Float64Values.with_decisions`).
    """

    def __init__(
        self,
        values: Mapping[str, Float64Value],
        problem: str = "",
        reads: Mapping[str, Sequence[str]] = MappingProxyType({}),
        *,
        affected: Collection[str] = (),
        changed: Mapping[str, Float64Value] = MappingProxyType({}),
        steps: Iterable[str] = (),
        compute: Callable[[Mapping[str, torch.Tensor]], Float64Values] | None = None,
    ) -> None:
        super().__init__()
        self._compute, self.steps = compute, frozenset(steps)
        self.problem = problem
        self._values, self._reads, self._changed = values, reads, changed
        # The decision itself may be within a value, and have no name.
        self.changed_decisions = {name for name in affected if not any(item in affected for item in self.reads(name))}

    def get(self, name: str) -> Float64Value | None:
        """Return the float64 value of the value `name`, or None if there is none."""
        return self._values.get(name)

    def get_with_changed_decisions(self, name: str) -> Float64Value | None:
        """Return a value whose noisy value is computed from the decisions that noise changed, or None."""
        return self._changed.get(name)

    def with_decisions(self, decisions: Mapping[str, torch.Tensor]) -> Float64Values | None:
        """Return the values as computed from other decisions, those that are given now; None without `compute`."""
        return None if self._compute is None else self._compute(decisions)

    def reads(self, name: str) -> Sequence[str]:
        """Return the names of what a value is computed from; empty if that is not known."""
        return self._reads.get(name, ())
