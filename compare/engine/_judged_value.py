"""`JudgedValue`: what is known of a value when it was compared with its reference."""

from dataclasses import dataclass
from typing import Any, Self

import torch

from ..float64._verdict import RoundingVerdict
from ..metrics._metrics import Difference
from ..metrics._spread import Spread
from ..results._rows import DIVERGED, JUDGED, Status


@dataclass(frozen=True)
class JudgedValue:
    """What is known of a value when it was compared with its reference; see `Row` for the attributes."""

    value: str
    status: Status
    reason: str = ""
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    evidence: str = ""
    difference: Difference | None = None
    float64: RoundingVerdict | None = None
    exact_in: str = ""
    spread: Spread | None = None
    random: bool = False

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor | None, status: Status, reason: str = "", **found: Any) -> Self:
        """Return what is known of a value with the dtype and shape of its tensor, or without them if it is None."""
        if tensor is None:
            return cls(name, status, reason, **found)
        return cls(name, status, reason, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), **found)

    @property
    def judged(self) -> bool:
        """Whether the value was compared with a reference."""
        return self.status in JUDGED

    @property
    def diverged(self) -> bool:
        """Whether the value differs from its reference by more than is allowed."""
        return self.status in DIVERGED
