"""Decisions as tensors: which values they are, and where two of them differ."""

from typing import Any

import torch

_ROUNDED = 4.0  # units by which floating-point decisions may differ: they may be scaled or summed


def is_decision(value: torch.Tensor | list[Any]) -> bool:
    """Return whether a value consists of integers or booleans, which may be decisions; a sequence is none."""
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def differing(one: torch.Tensor, other: torch.Tensor, unit: float) -> torch.Tensor:
    """Return where two decisions of the same shape differ: floating-point ones by more than they are rounded.

    Args:
        one: a decision.
        other: another one.
        unit: half a unit in the last place of the coarser dtype, relative. Numbers of at least 1/2 of its reciprocal
            have no fraction, so that nothing decides how they are rounded.
    """
    if is_decision(one):
        return one != other
    first, second = one.double(), other.double()
    smaller, larger = torch.minimum(first.abs(), second.abs()), torch.maximum(first.abs(), second.abs())
    is_near = ((first - second).abs() <= _ROUNDED * unit * larger) | (smaller * unit >= 1 / 2)
    return ~((first == second) | (first.isnan() & second.isnan()) | (is_near & larger.isfinite()))


def differ(one: torch.Tensor, other: torch.Tensor, unit: float) -> bool:
    """Return whether two decisions differ (see `differing`)."""
    return one.shape != other.shape or bool(differing(one, other, unit).any())


def decided(value: torch.Tensor, other: torch.Tensor, unit: float) -> torch.Tensor:
    """Return a value of the decisions of another one of the same shape (see `differing`); integers are these alone."""
    return other if is_decision(value) else torch.where(differing(value, other, unit), other.to(value.dtype), value)
