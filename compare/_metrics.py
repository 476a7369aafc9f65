"""How far one tensor is from another, measured so that nothing slips through."""

import math
from dataclasses import dataclass

import torch
from filch.steal import describe

from ._tolerance import Tolerance, tolerance_for

_UNITS = 16  # in the last place: what the roundings on the way through a model add up to
_CHUNK = 2**20  # elements at a time: a few megabytes, so that differences of large tensors need no second copy of them


@dataclass(frozen=True)
class Difference:
    """How far `actual` is from `expected`.

    Attributes:
        close: whether they count as the same: shapes and dtypes are equal, NaNs and infinities stand in the same
            places, and both limits of the tolerance hold.
        problem: why they can't be compared number by number (shapes, dtypes, a missing value), or None.
        error_max: the largest harmonic error `|a - e| / (|e| + 1)`, half the harmonic mean of absolute and relative error
            (source: hidet's correctness report); inf where one side is not finite and the other is anything else.
        error_mean: its mean.
        absolute: the largest absolute difference.
        relative: the largest relative difference, over the elements whose expected value is not 0.
        scale: the largest absolute difference relative to the largest expected magnitude.
        snr: the signal-to-noise ratio in decibel, 10 log10(sum e² / sum (a - e)²); inf for equal tensors.
        mismatched: elements whose error is over the harmonic limit and more than rounding (for exact dtypes: that differ).
        nonfinite: elements of which one is NaN or infinite and the other is not the same.
        count: elements.
        index: where the largest error is.
        tolerance: the limits that were applied.
    """

    close: bool
    problem: str | None = None
    error_max: float = math.nan
    error_mean: float = math.nan
    absolute: float = math.nan
    relative: float = math.nan
    scale: float = math.nan
    snr: float = math.nan
    mismatched: int = 0
    nonfinite: int = 0
    count: int = 0
    index: tuple[int, ...] = ()
    tolerance: Tolerance = Tolerance(0.0, 0.0)

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        where = f" at index {list(self.index)}" if self.index else ""
        parts = [
            f"{self.mismatched} of {self.count} elements differ",
            f"greatest error {self.error_max:.1e}{where} (up to {self.tolerance.harmonic:.1e} allowed)",
            f"absolute {self.absolute:.1e}, relative to the tensor's scale {self.scale:.1e}",
        ]
        return "; ".join([*parts, f"{self.nonfinite} NaN or inf on one side"] if self.nonfinite else parts)


def compare_tensors(
    expected: torch.Tensor | None,
    actual: torch.Tensor | None,
    *,
    tolerance: float | Tolerance | None = None,
    magnitude: float = 0.0,
) -> Difference:
    """Measure how far `actual` is from `expected`.

    Nothing broadcasts, no dtype is promoted, NaN is equal to NaN alone and an infinity to itself. Differences are taken
    in a type that holds them: float32 and below in float64, integers by equality.

    Args:
        expected: the reference; None if there is none.
        actual: what is judged; None if it is missing.
        tolerance: see `tolerance_for`.
        magnitude: the largest magnitude that went into `actual`, if it is larger than what is expected. Differences of up to
            16 units in the last place of that magnitude, or of the largest expected one, are rounding, however small the
            element that has them (but no more than the harmonic limit of it: tolerance 0 asks for equality).
    """
    if expected is None or actual is None:
        return Difference(False, "the expected value is missing" if expected is None else "the value is missing")
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        what = "shape" if expected.shape != actual.shape else "dtype"
        return Difference(False, f"the {what} differs: {describe(actual)} where {describe(expected)} is expected")
    limits = tolerance_for(expected.dtype, tolerance)
    if expected.numel() == 0:
        return Difference(True, None, 0.0, 0.0, 0.0, 0.0, 0.0, math.inf, tolerance=limits)
    e, a = _flat(expected), _flat(actual)
    totals = _Totals(limits, _rounding(e, magnitude, limits))
    for start in range(0, e.numel(), _CHUNK):
        totals.add(e[start : start + _CHUNK], a[start : start + _CHUNK].to(e.device), start)
    return totals.difference(tuple(expected.shape))


def _rounding(expected: torch.Tensor, magnitude: float, limits: Tolerance) -> float:
    """The absolute difference that rounding explains."""
    if expected.itemsize == 1 or not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return 0.0  # 16 units of a float8 are more than its whole range
    largest = max((largest_magnitude(part) for part in expected.split(_CHUNK)), default=0.0)
    return min(_UNITS * torch.finfo(expected.dtype).eps, limits.harmonic) * max(largest, magnitude)


def largest_magnitude(tensor: torch.Tensor) -> float:
    """The largest absolute value among a tensor's finite numbers; 0 if it has none."""
    size = _real(tensor).abs()
    return float(torch.where(size.isfinite(), size, 0.0).max()) if size.numel() else 0.0


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """In a type that has arithmetic."""
    if tensor.dtype == torch.complex32:
        return tensor.to(torch.complex64)
    return tensor.to(torch.float32) if tensor.itemsize == 1 and tensor.dtype.is_floating_point else tensor


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    # Packed float4 has no arithmetic; its bytes are compared as they are.
    return plain.view(torch.uint8) if plain.dtype == torch.float4_e2m1fn_x2 else plain


class _Totals:
    """What the chunks add up to."""

    def __init__(self, limits: Tolerance, rounding: float) -> None:
        self._limits = limits
        self._rounding = rounding
        self._worst, self._where = -1.0, 0
        self._sum = self._absolute = self._relative = self._largest = self._signal = self._noise = 0.0
        self._mismatched = self._nonfinite = self._count = 0

    def add(self, expected: torch.Tensor, actual: torch.Tensor, start: int) -> None:
        e, a, same = _wide(expected, actual)
        distance = torch.where(same, 0.0, (a - e).abs())
        size = e.abs()
        odd = ~same & ~(torch.isfinite(a) & torch.isfinite(e))
        distance = torch.where(odd, math.inf, distance)
        if not expected.dtype.is_floating_point and not expected.dtype.is_complex:
            # int64 differences may round to 0 in float64, and differ all the same.
            distance = torch.where(same, distance, distance.clamp(min=1.0))
        # Equal NaNs must not reach the quotient: max() would return them and hide every other element.
        error = torch.where(same, 0.0, torch.where(odd, math.inf, distance / (size + 1)))
        worst, where = error.max(dim=0)
        if float(worst) > self._worst:
            self._worst, self._where = float(worst), start + int(where)
        finite, known = ~odd, torch.isfinite(size)
        self._sum += float(error.sum())
        self._absolute = max(self._absolute, float(distance.max()))
        nonzero = finite & known & (size > 0)
        self._relative = max(self._relative, float(torch.where(nonzero, distance / size, 0.0).max()))
        self._largest = max(self._largest, float(torch.where(known, size, 0.0).max()))
        self._signal += float(torch.where(known, size, 0.0).square().sum())
        self._noise += float(distance.square().sum())
        self._mismatched += int(((error > self._limits.harmonic) & (distance > self._rounding)).sum())
        self._nonfinite += int(odd.sum())
        self._count += expected.numel()

    def difference(self, shape: tuple[int, ...]) -> Difference:
        scale = self._absolute / self._largest if self._largest else (math.inf if self._absolute else 0.0)
        in_scale = scale <= self._limits.scale or self._absolute <= self._rounding
        return Difference(
            close=not self._mismatched and in_scale,
            error_max=self._worst,
            error_mean=self._sum / self._count,
            absolute=self._absolute,
            relative=self._relative,
            scale=scale,
            snr=10 * math.log10(self._signal / self._noise) if self._noise and self._signal and math.isfinite(self._noise) else (-math.inf if self._noise else math.inf),
            mismatched=self._mismatched,
            nonfinite=self._nonfinite,
            count=self._count,
            index=_unravel(self._where, shape),
            tolerance=self._limits,
        )  # fmt: skip


def _wide(expected: torch.Tensor, actual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both in a type that holds their difference, and where they are the same (NaN to NaN, infinity to itself)."""
    if expected.dtype.is_complex:
        e, a = expected.to(torch.complex128), actual.to(torch.complex128)
        return e, a, _same(e.real, a.real) & _same(e.imag, a.imag)
    if expected.dtype.is_floating_point:
        e, a = expected.to(torch.float64), actual.to(torch.float64)
        return e, a, _same(e, a)
    bits = expected.view(torch.int64) == actual.view(torch.int64) if expected.dtype == torch.uint64 else expected == actual
    return expected.to(torch.float64), actual.to(torch.float64), bits


def _same(e: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return (e == a) | (e.isnan() & a.isnan())


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        flat, position = divmod(flat, size)
        index.append(position)
    return tuple(reversed(index))
