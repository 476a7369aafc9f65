"""A value to judge, and what it should be."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from filch.export import Node

from ..float64._verdict import Float64Value, RoundingVerdict
from ..metrics._metrics import Difference
from ..metrics._tolerance import Tolerance

TensorLookup = Callable[[str], torch.Tensor | None]


@dataclass(frozen=True)
class Pair:
    """A value of a run and what it should be.

    Attributes:
        name: its name in the run.
        exported_name: its name in the exported graph.
        node: the node of the run that computes it.
        tensor: the actual tensor.
        reference: the expected tensor; None is the float64 value, rounded.
        exact: the value in float64; None if there is none.
        spread: the largest difference of each element between repeated runs.
        inputs: returns what the node has read, by name; None for a weight and what is not known.
        observed: whether the value is of the same run as the other ones, or equal to that; a run without
            instrumentation may make other decisions.
        differs: whether the value exceeds the tolerance.
        tolerance: the tolerance of the value.
        measure: returns how far the value of a pair is from a reference, if the tolerance judges values without a
            float64 value; None leaves that to the caller.
        whole: for a node in isolation, the verdict on its value in the whole run.
        is_decision: whether the value may be a decision (see `Decisions`).
        is_rounded: whether the node may round its operands; else the units of the model's dtypes judge it.
        is_hypothetical: whether a rule tries another `exact` and `reference`, which only the rules that compare numbers
            judge.
    """

    name: str
    exported_name: str
    node: Node
    tensor: torch.Tensor
    reference: torch.Tensor | None
    exact: Float64Value | None
    spread: torch.Tensor | None = None
    inputs: TensorLookup = lambda _: None
    observed: bool = True
    differs: bool = False
    tolerance: float | Tolerance | None = None
    measure: Callable[["Pair", torch.Tensor], Difference] | None = None
    whole: RoundingVerdict | None = None
    is_decision: bool = False
    is_rounded: bool = True
    is_hypothetical: bool = False

    @property
    def expected(self) -> torch.Tensor | None:
        """The reference, or the float64 value in the dtype of the value; None if neither is known."""
        if self.reference is not None:
            return self.reference
        if self.exact is None or self.exact.value.is_floating_point() != self.tensor.is_floating_point():
            return None
        return self.exact.value.to(self.tensor.dtype)

    def rounded(self, exact: Float64Value) -> torch.Tensor:
        """Return a float64 value in the model's dtype, because a mask is the lowest number of its dtype."""
        return exact.value.to((self.tensor if self.reference is None else self.reference).dtype)

    def hypothetical(self, exact: Float64Value | None, reference: torch.Tensor | None) -> "Pair":
        """Return the value with another float64 value and reference, to try whether it is right compared with these."""
        return replace(self, exact=exact, reference=reference, is_hypothetical=True)
