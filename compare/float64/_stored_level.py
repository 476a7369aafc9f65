"""Rounding levels and fingerprints of float64 values, small enough to be stored beside each value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from ..common._complex import complex_as_real
from ._fingerprint import PROJECTIONS, distance, projections
from ._verdict import (
    MASK_NOISE,
    MIN_LARGEST,
    MIN_TYPICAL,
    SMALLEST_NORMAL,
    SMALLEST_UNIT,
    UNRELIABLE,
    Float64Value,
    jumps,
    root_mean_square,
    typical_size,
)

_MAX_COPIED = 2.0  # as for other values: noise changes a number that is only moved by less than so many units
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class StoredLevel:
    """The rounding level of a value, and a fingerprint of what float64 computes for it.

    One rounding error of an element is `unit * |element| + noise`; all errors are multiples of it. Integers and
    booleans have none: all their numbers are 0.

    Attributes:
        unit: half a unit in the last place of the coarsest dtype on the way to the value, relative.
        noise: how much an element typically changes if everything that it is computed from changes by half a unit.
        largest: the error of the worst element that rounding explains.
        typical: the root mean square error that rounding explains.
        largest_error: the error of the worst element, relative to float64.
        typical_error: the root mean square error, relative to float64.
        projections: of the float64 value, in rounding errors (see the function `projections`).
    """

    unit: float
    noise: float
    largest: float
    typical: float
    largest_error: float
    typical_error: float
    projections: tuple[float, ...]

    @property
    def reliable(self) -> bool:
        """Whether rounding explains the value's own error; else float64 makes another decision, for example."""
        return self.typical_error <= self.typical

    def ratio(self, value: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor | None = None) -> float:
        """Return the difference of two values as a multiple of the rounding level: of the worst element or typically.

        Args:
            value: the value that the level belongs to.
            actual: a value of the same shape.
            expected: what it is compared with, of any floating-point dtype; None is `value`.

        Returns:
            the larger ratio; inf if integers differ, or if one of two elements is NaN or infinite.
        """
        expected = value if expected is None else expected
        if not self.unit:
            first, second = (tensor.to(device="cpu", dtype=expected.dtype) for tensor in (expected, actual))
            return 0.0 if torch.equal(first, second) else math.inf
        first, second = _flat(expected), _flat(actual)
        finite = first.isfinite() & second.isfinite()
        if not bool((finite | (first == second) | (first.isnan() & second.isnan())).all()):
            return math.inf
        errors = torch.where(finite, (second - first).abs(), 0.0)
        errors[errors < SMALLEST_NORMAL.get(self.unit, 0.0)] = 0.0  # processors may flush such numbers to 0
        errors /= self.scale(value)
        return (
            max(float(errors.amax()) / self.largest, root_mean_square(errors) / self.typical) if errors.any() else 0.0
        )

    def float64_change(self, value: torch.Tensor, float64: torch.Tensor) -> float:
        """Return how far a float64 value is from that of the fingerprint, as a multiple of the rounding level.

        Args:
            value: the value that the level belongs to.
            float64: a value of the same shape.

        Returns:
            an estimate of the root mean square; inf if integers differ.
        """
        change = distance(projections(float64, self.scale(value) if self.unit else None), self.projections)
        if not self.unit:
            return math.inf if change else 0.0
        return change / self.typical

    def relative_to(self, value: torch.Tensor) -> float:
        """Return one rounding error of a typical element, relative to its magnitude; 0 if all elements are 0."""
        sizes = torch.nan_to_num_(_flat(value).abs_(), 0.0, 0.0, 0.0)
        typical = typical_size(sizes, sizes, 1.0)
        return float(self.scale(value).median()) / typical if typical else 0.0

    def scale(self, value: torch.Tensor) -> torch.Tensor:
        """Return one rounding error of each element."""
        size = torch.nan_to_num_(_flat(value).abs_(), 0.0, 0.0, 0.0).mul_(self.unit)
        return size.clamp_(min=SMALLEST_UNIT.get(self.unit, 0.0)).add_(self.noise + _TINY)

    def row(self) -> list[float | list[float]]:
        """Return the attributes as a row of JSON."""
        *numbers, sums = (getattr(self, field.name) for field in fields(self))
        return [*numbers, [*sums]]

    @classmethod
    def from_row(cls, row: Sequence[float | list[float]]) -> "StoredLevel":
        """Return the level that a row describes, which `row` has made.

        Raises:
            ValueError: the row is not valid.
        """
        if len(row) != len(fields(cls)) or not isinstance(row[-1], list) or len(row[-1]) != PROJECTIONS:
            raise ValueError(f"this is no rounding level: {row!r:.200}")
        numbers = [float(number) if isinstance(number, float | int) else math.nan for number in row[:-1]]
        unit, noise, largest, typical, largest_error, typical_error = numbers
        level = cls(unit, noise, largest, typical, largest_error, typical_error, tuple(map(float, row[-1])))
        valid = all(0 <= number < math.inf for number in numbers)
        if not valid or (level.unit and not (level.largest and level.typical)):  # they are divisors
            raise ValueError(f"a rounding level has finite numbers above 0, not {row!r:.200}")
        return level


def stored_level(value: torch.Tensor, float64: Float64Value) -> StoredLevel | None:
    """Return the rounding level of a value; None if float64 has numbers where the value has none, or the reverse.

    The level is the larger of the value's own distance from float64 and the change of the float64 value when everything
    that it is computed from changes by half a unit in the last place, but at least a few units. An error that is far
    larger than the latter does not count: the level is not `reliable` then.

    Args:
        value: the value.
        float64: what float64 computes for it.
    """
    real = complex_as_real(value)
    expected = torch.float64 if real.is_floating_point() else real.dtype  # else the run in float64 has not computed it
    if float64.value.dtype != expected or real.shape != float64.value.shape or not value.numel():
        return None
    if not real.is_floating_point():
        return StoredLevel(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, projections(float64.value, None))
    flat, exact, noisy = (_flat(tensor) for tensor in (value, float64.value, float64.noisy))
    finite = flat.isfinite() & exact.isfinite() & noisy.isfinite()
    if not bool((finite | (flat == exact) | (flat.isnan() & exact.isnan())).all()):
        return None
    error, change = (torch.where(finite, (tensor - exact).abs(), 0.0) for tensor in (flat, noisy))
    sizes = torch.nan_to_num(exact.abs(), 0.0, 0.0, 0.0)
    unit = float64.unit
    change[jumps(change, unit * sizes)] = 0.0
    is_copied = not error.any() and bool((change <= _MAX_COPIED * unit * sizes).all())
    magnitude = typical_size(sizes, sizes, 1.0)
    noise = max(typical_size(change, sizes, MASK_NOISE * unit), unit * unit * magnitude)
    level = StoredLevel(unit, unit * magnitude if is_copied else noise, 1.0, 1.0, 0.0, 0.0, ())
    scale = level.scale(value)
    error /= scale
    change /= scale
    largest_error, typical_error = float(error.amax()), root_mean_square(error)
    typical_change = max(root_mean_square(change), MIN_TYPICAL)
    largest_change = max(float(change.amax()), 1.0 if is_copied else MIN_LARGEST)
    reliable = typical_error <= UNRELIABLE * typical_change
    return StoredLevel(
        unit,
        level.noise,
        max(largest_error, largest_change) if reliable else largest_change,
        max(typical_error, typical_change) if reliable else typical_change,
        largest_error,
        typical_error,
        projections(exact, scale),
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the numbers of a tensor in float64 on the CPU, complex ones as pairs, in one dimension."""
    return complex_as_real(tensor.detach()).reshape(-1).to(device="cpu", dtype=torch.float64, copy=True)
