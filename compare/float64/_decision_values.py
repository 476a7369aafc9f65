"""Decisions as tensors: which values they are, and where two of them differ."""

from typing import Any

import torch

_ROUNDED = 4.0  # units by which floating-point decisions may differ: they may be scaled or summed
_CHUNK = 2**15  # elements at a time, so that their float64 copies stay small


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
    result = torch.empty(one.shape, dtype=torch.bool, device=one.device)
    parts = (torch.split(tensor.reshape(-1), _CHUNK) for tensor in (result, one, other))
    for part, first, second in zip(*parts, strict=True):
        part.copy_(_differing_numbers(first.double(), second.double(), unit))
    return result


def _differing_numbers(first: torch.Tensor, second: torch.Tensor, unit: float) -> torch.Tensor:
    """Return where floating-point decisions differ by more than they are rounded; equal infinities and NaN do not."""
    smaller, larger = torch.minimum(first.abs(), second.abs()), torch.maximum(first.abs(), second.abs())
    is_near = ((first - second).abs() <= _ROUNDED * unit * larger) | (smaller * unit >= 1 / 2)
    return ~((first == second) | (first.isnan() & second.isnan()) | (is_near & larger.isfinite()))


def differ(one: torch.Tensor, other: torch.Tensor, unit: float) -> bool:
    """Return whether two decisions differ (see `differing`)."""
    return one.shape != other.shape or bool(differing(one, other, unit).any())


def decided(value: torch.Tensor, other: torch.Tensor, unit: float) -> torch.Tensor:
    """Return a value with the decisions of another one of the same shape: where they differ, its numbers."""
    if is_decision(value):
        return other
    differs = differing(value, other, unit)
    return torch.where(differs, other.to(value.dtype), value) if bool(differs.any()) else value
