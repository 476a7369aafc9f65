"""Measure the difference of two tensors."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from filch.steal import describe

from ..common._complex import complex_as_real
from ._chunk import ChunkMeasures, measure, scratch_memory
from ._repeated import repetition_problem, without_repetition
from ._tolerance import ANY_ERROR, Tolerance, is_coarser, largest_of, tolerance_for

_ROUNDING_UNITS = 16  # in the last place: the accumulated rounding of a model
_OUTLIER = 1000  # times the lower quartile
_SAMPLE_SIZE = 2**18  # elements that suffice to estimate a tensor's magnitude
_MASK = 0.9  # of the lowest number of a dtype: the least magnitude of a mask, with a score added to it
_FIRST_ELEMENTS = 2**10  # that suffice to see that most tensors are not equal
_GPU_CHUNK = 2**26  # elements at a time: few launches, and sums of squares within float32
_CPU_CHUNK = 2**18  # elements at a time: they fit in the processor's cache, and are enough for all of its threads
_FAST_IN_NUMPY = frozenset({torch.float32, torch.float64})
_WITH_SUBNORMALS = frozenset({torch.float16, torch.complex32})  # no processor flushes theirs to 0

MEASURES = (
    *("error", "mean_error", "absolute", "relative", "scale", "rms", "snr"),
    *("mismatched", "nonfinite", "overflowed", "clipped", "zeroed", "count"),
)


@dataclass(frozen=True)
class Difference:
    """The difference of `actual` from `expected`.

    Attributes:
        close: whether shapes and dtypes are equal, NaNs and infinities have the same positions, and all limits of the
            tolerance hold.
        problem: why they can't be compared number by number (shapes, dtypes, a missing value), or None.
        error: the largest harmonic error `|a - e| / (|e| + 1)` of an element, half the harmonic mean of absolute and
            relative error (source: hidet's correctness report); inf where one side is not finite and the other differs.
        mean_error: the mean of the harmonic errors of all elements.
        absolute: the largest absolute difference.
        relative: the largest relative difference, over the elements whose expected value is not 0.
        scale: the largest absolute difference relative to the largest expected magnitude.
        rms: the root mean square of the difference relative to that of the expected tensor.
        snr: the signal-to-noise ratio in decibel, -20 log10(rms); inf for equal tensors.
        mismatched: the number of elements whose error exceeds the harmonic limit and rounding (for exact dtypes: that
            differ).
        nonfinite: the number of elements that are NaN or infinite on one side and different on the other.
        overflowed: the number of elements that are NaN or infinite and should be finite.
        clipped: the number of elements that are the largest number of their dtype, or of the integers that they were
            quantized to, and should be larger.
        zeroed: the number of elements that are 0 and should not be.
        count: the number of elements.
        index: the index of the largest error.
        tolerance: the limits that were applied.
    """

    close: bool
    problem: str | None = None
    error: float = math.nan
    mean_error: float = math.nan
    absolute: float = math.nan
    relative: float = math.nan
    scale: float = math.nan
    rms: float = math.nan
    snr: float = math.nan
    mismatched: int = 0
    nonfinite: int = 0
    overflowed: int = 0
    clipped: int = 0
    zeroed: int = 0
    count: int = 0
    index: tuple[int, ...] = ()
    tolerance: Tolerance = Tolerance(0.0, 0.0)  # noqa: RUF009  frozen

    @property
    def measures(self) -> dict[str, float | int]:
        """All measures, by name."""
        return {name: getattr(self, name) for name in MEASURES}

    @property
    def excess(self) -> float:
        """The largest ratio of a measure to its limit; inf if a limit of 0 does not hold."""
        return max(self._limit_ratios)

    def __str__(self) -> str:
        """Return the measures as a sentence, the one that exceeds its limit most at the front."""
        if self.problem:
            return self.problem
        harmonic, scale, rms = self._limit_ratios
        harmonic = harmonic if self.mismatched else 0.0  # else rounding explains it
        error, absolute = self._largest
        if scale > 1 or self.tolerance.harmonic == ANY_ERROR:  # exceeded, or in place of the harmonic limit
            absolute += _allowed(self.tolerance.scale)
        parts = [(harmonic, f"{self._mismatched_text}{error}{_allowed(self.tolerance.harmonic)}"), (scale, absolute)]
        if not self.close:
            parts.sort(key=lambda part: -max(part[0], 1))
        if rms > max(harmonic, scale, 1):
            mean = f"root mean square {self.rms:.1e} relative to the tensor's{_allowed(self.tolerance.rms)}"
            parts.insert(0, (rms, mean))
        nonfinite = [f"{self.nonfinite} NaN or inf, on one side or not the same"] if self.nonfinite else []
        return "; ".join([*nonfinite, *(text for _, text in parts), *self._special_elements])

    @property
    def _mismatched_text(self) -> str:
        """How many elements differ; `""` if each differs by less than its limit, although all of them may differ."""
        if self.error and not self.mismatched:
            return ""
        beyond = " by more than is allowed" if self.error and self.tolerance.harmonic else ""
        return f"{self.mismatched} of {self.count} elements differ{beyond}; "

    @property
    def without_limits(self) -> str:
        """The measures as a sentence without the tolerance, for a difference that was judged by something else."""
        return self.problem or "; ".join([*self._largest, *self._special_elements])

    @property
    def _largest(self) -> tuple[str, str]:
        """The largest harmonic error with its place, and the largest absolute one."""
        where = f" at index {list(self.index)}" if self.index else ""
        absolute = f"absolute {self.absolute:.1e}, relative to the tensor's scale {self.scale:.1e}"
        return f"greatest harmonic error {self.error:.1e}{where}", absolute

    @property
    def _special_elements(self) -> list[str]:
        """How many elements overflowed, were clipped or became 0."""
        counts = {"overflowed": self.overflowed, "clipped": self.clipped, "became 0": self.zeroed}
        return [f"{count} {what}" for what, count in counts.items() if count]

    @property
    def _limit_ratios(self) -> tuple[float, float, float]:
        """The harmonic error, scale and rms, each divided by its limit."""
        limits = self.tolerance
        harmonic = _quotient(self.error, limits.harmonic)
        return harmonic, _quotient(self.scale, limits.scale), _quotient(self.rms, limits.rms)


_EQUAL = Difference(close=True, error=0.0, mean_error=0.0, absolute=0.0, relative=0.0, scale=0.0, rms=0.0, snr=math.inf)


def _allowed(limit: float) -> str:
    """Return a limit as the end of a sentence; `""` if there is none."""
    return "" if limit == ANY_ERROR else f" (up to {limit:.1e} allowed)"


def compare_tensors(
    actual: torch.Tensor | None,
    expected: torch.Tensor | None,
    *,
    tolerance: float | Tolerance | None = None,
    magnitude: float | Callable[[], float] = 0.0,
    lower_precision: bool = False,
) -> Difference:
    """Measure the difference of `actual` from `expected`, in the order of `torch.testing.assert_close`.

    Nothing is broadcast, no dtype is promoted, NaN only equals NaN, and an infinity only itself. Floating-point
    differences are computed in float64, integers are compared exactly, and complex numbers as pairs of real ones, with
    one more dimension.

    Args:
        actual: the value to judge; None if it is missing.
        expected: the reference; None if there is none.
        tolerance: see `tolerance_for`.
        magnitude: the magnitude of the numbers that were added to get the elements that differ, if larger than theirs
            (see `typical_magnitude`), or a function that returns it, which is called if the magnitude of the elements
            does not explain the difference. Differences of up to 16 units in the last place of it are rounding, however
            small the element (but limited by the harmonic limit relative to it, so that tolerance 0 means equality). So
            are differences below the dtype's smallest normal number, which processors may flush to 0; for float16,
            below its smallest subnormal number, as its subnormal numbers are not flushed.
        lower_precision: allow `actual` to have a coarser floating-point dtype than `expected`, whose tolerance then
            applies. Masks, near the lowest number of either dtype or -inf, are equal.
    """
    if expected is None or actual is None:
        side = "expected value" if expected is None else "value"
        return Difference(close=False, problem=f"the {side} is missing")
    lowered = lower_precision and is_coarser(actual.dtype, expected.dtype)
    if problem := _problem(actual, expected, lowered=lowered):
        return Difference(close=False, problem=problem)
    dtype = actual.dtype
    limits = tolerance_for(dtype, tolerance)
    actual, expected, times = without_repetition(actual, expected)
    if problem := repetition_problem(max(expected.nbytes, actual.nbytes), (expected, actual)):
        return Difference(close=False, problem=f"numbers are repeated to {problem}: they are not compared")
    expected = expected.to(actual.device)  # measure on the device that computed it
    if lowered:
        actual, expected = _to_common_dtype(actual, expected)
    actual, expected = complex_as_real(actual), complex_as_real(expected)
    a, e = flat(actual), flat(expected)
    # Tensors with NaN are not equal here, and are measured below.
    if actual is expected or (torch.equal(a[:_FIRST_ELEMENTS], e[:_FIRST_ELEMENTS]) and are_equal(a, e)):
        return replace(_EQUAL, count=times * expected.numel(), tolerance=limits)
    step = min(_CPU_CHUNK if a.device.type == "cpu" else _GPU_CHUNK, e.numel())
    totals = _ChunkTotals(largest_of(dtype), scratch_memory(step, a.device))
    for start in range(0, e.numel(), step):
        totals.add(a[start : start + step], e[start : start + step], start)
    close, mismatched = True, 0
    if totals.worst > limits.harmonic or totals.scale > limits.scale or totals.rms > limits.rms:
        elements = typical_magnitude(e[e != a])
        for added in _magnitudes(magnitude):
            rounding = _rounding(dtype, max(elements, added), limits)
            mismatched, noise = _beyond_rounding(a, e, limits.harmonic, rounding)
            in_scale = totals.scale <= limits.scale or totals.absolute <= rounding
            close = not mismatched and in_scale and _quotient(noise, totals.signal) <= limits.rms
            if close:
                break
    return totals.difference(
        close=close,
        mismatched=mismatched,
        limits=limits,
        shape=tuple(expected.shape),
        times=times,
    )


def _magnitudes(magnitude: float | Callable[[], float]) -> Iterator[float]:
    """Yield what rounding may be relative to, until it explains a difference: of a function, 0 and what it returns."""
    if callable(magnitude):
        yield 0.0
        yield magnitude()
    else:
        yield magnitude


def _problem(actual: torch.Tensor, expected: torch.Tensor, *, lowered: bool) -> str:
    """Return why two tensors can't be compared number by number, or `""`; `lowered` allows a coarser dtype."""
    for tensor in (expected, actual):
        if tensor.layout is not torch.strided or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            return f"a {kind} tensor can't be compared: convert it to a dense one"
    if expected.shape == actual.shape and (expected.dtype == actual.dtype or lowered):
        return ""
    what = "shape" if expected.shape != actual.shape else "dtype"
    return f"the {what} differs: {describe(actual)} where {describe(expected)} is expected"


def replace_masks(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a run in lower precision in at least float32, its masks replaced by those of `expected`.

    If a precision is simulated, its tensors are float32, and their masks the lowest number of the simulated dtype.
    """
    if not actual.is_floating_point():
        return actual
    wide = torch.promote_types(expected.dtype, torch.float32)
    return torch.where(_masks(actual, expected), expected.to(wide), actual.to(wide))


def _to_common_dtype(actual: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both in a dtype that represents their numbers, with masks of the finer dtype replaced by the coarser's."""
    wide = torch.promote_types(expected.dtype, torch.float32)  # float32 represents both float16 and bfloat16
    masked = _masks(actual, expected)
    actual, expected = actual.to(wide), expected.to(wide)
    return actual, (torch.where(masked, actual, expected) if bool(masked.any()) else expected)


def _masks(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return where both have a mask, which excludes a position from attention.

    A mask is the lowest number of its dtype, or -inf. Coarser dtypes have another lowest number, and a score may be
    added to it. The largest number is not a mask: if it becomes inf, it has overflowed.
    """
    largest, actual_largest = largest_of(expected.dtype), largest_of(actual.dtype)
    return expected.isfinite() & (expected.double() < -_MASK * largest) & (actual.double() < -_MASK * actual_largest)


def _rounding(dtype: torch.dtype, largest: float, limits: Tolerance) -> float:
    """Return the absolute difference that rounding explains, for numbers of magnitude `largest`."""
    if dtype.itemsize == 1 or not (dtype.is_floating_point or dtype.is_complex):
        return 0.0  # 16 units of a float8 are more than its whole range
    info = torch.finfo(dtype)
    subnormal = (info.smallest_normal * (info.eps if dtype in _WITH_SUBNORMALS else 1)) if limits.harmonic else 0.0
    return max(min(_ROUNDING_UNITS * info.eps, limits.harmonic) * largest, subnormal)


def typical_magnitude(tensor: torch.Tensor) -> float:
    """Return the largest absolute value among a tensor's finite numbers without outliers; 0 if it has none.

    Masks have numbers like -3.4e38 beside scores of size 1, and the rounding of the former would explain any difference
    of the latter. Therefore numbers over 1000 times the lower quartile are ignored.
    """
    sample = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // _SAMPLE_SIZE)]
    magnitude = sample.abs().double() if sample.is_complex() else sample.double().abs()
    magnitude = magnitude[magnitude.isfinite() & (magnitude > 0)]
    if not magnitude.numel():
        return 0.0
    usual = magnitude <= _OUTLIER * magnitude.kthvalue(1 + magnitude.numel() // 4).values
    return float(magnitude[usual].max())


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in one dimension, detached."""
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    # Packed float4 has no arithmetic; its bytes are compared.
    return plain.view(torch.uint8) if plain.dtype == torch.float4_e2m1fn_x2 else plain


def are_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return what `torch.equal` does; of tensors that are equal, in half of its time."""
    if first.shape != second.shape or first.dtype not in _FAST_IN_NUMPY or first.device.type != "cpu":
        return torch.equal(first, second)
    chunks = zip(*(torch.split(flat(tensor), _CPU_CHUNK) for tensor in (first, second)), strict=True)
    return all(np.array_equal(one.numpy(), other.numpy()) for one, other in chunks)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a dense tensor in row-major order, as uint8 in one dimension."""
    row = flat(tensor).contiguous()
    if row.stride() != (1,):  # a single element may have stride 0, which `view` refuses
        row = row.clone(memory_format=torch.contiguous_format)
    return row.view(torch.uint8)


class _ChunkTotals:
    """The measures of a tensor, which are added up from those of its chunks; see `ChunkMeasures` for the terms.

    Args:
        dtype_max: the largest number of the dtype that is judged.
        scratch: see `scratch_memory`.
    """

    def __init__(self, dtype_max: float, scratch: torch.Tensor) -> None:
        self._dtype_max = dtype_max
        self._scratch = scratch
        self.worst, self._worst_index = -1.0, 0  # less than any error
        self.absolute = self.largest = 0.0
        self._error_sum = self._relative = self.signal = self._noise = 0.0
        self._nonfinite = self._overflowed = self._clipped = self._zeroed = self._count = 0

    @property
    def scale(self) -> float:
        """The largest absolute difference relative to the largest expected magnitude."""
        return _quotient(self.absolute, self.largest)

    @property
    def rms(self) -> float:
        """The root mean square of the difference relative to that of the expected tensor."""
        return _quotient(self._noise, self.signal)

    def add(self, actual: torch.Tensor, expected: torch.Tensor, start: int) -> None:
        """Add a chunk whose first element has index `start`."""
        measured, nonfinite = measure(actual, expected, self.worst, self._scratch), 0
        if measured is None:
            measured, nonfinite = _measured_in_float64(actual, expected)
        if measured.worst > self.worst:
            self.worst, self._worst_index = measured.worst, start + measured.worst_index
        self._error_sum += measured.error_sum
        self.absolute = max(self.absolute, measured.absolute)
        self.largest = max(self.largest, measured.largest)
        self._relative = max(self._relative, measured.relative)
        self.signal = math.hypot(self.signal, measured.signal)
        self._noise = math.hypot(self._noise, measured.noise)
        self._nonfinite += nonfinite
        self._count += expected.numel()
        if nonfinite or measured.largest > self._dtype_max:  # otherwise no element can have overflowed or be clipped
            a, e = actual.double(), expected.double()
            self._overflowed += int((e.isfinite() & ~a.isfinite()).sum())
            self._clipped += int(((a.abs() == self._dtype_max) & (e.abs() > self._dtype_max)).sum())
        if nonfinite or measured.relative >= 1:  # the relative difference of an element that becomes 0 is 1
            self._zeroed += int(((expected.double() != 0) & (actual.double() == 0)).sum())

    def difference(
        self, *, close: bool, mismatched: int, limits: Tolerance, shape: tuple[int, ...], times: int
    ) -> Difference:
        """Return the difference, with each element counted `times` times."""
        rms = self.rms
        return Difference(
            close=close,
            error=self.worst,
            mean_error=self._error_sum / self._count,
            absolute=self.absolute,
            relative=self._relative,
            scale=self.scale,
            rms=rms,
            snr=-20 * math.log10(rms) if 0 < rms < math.inf else -math.inf if rms else math.inf,
            mismatched=times * mismatched,
            nonfinite=times * self._nonfinite,
            overflowed=times * self._overflowed,
            clipped=times * self._clipped,
            zeroed=times * self._zeroed,
            count=times * self._count,
            index=tuple(map(int, np.unravel_index(self._worst_index, shape))),
            tolerance=limits,
        )


def _measured_in_float64(actual: torch.Tensor, expected: torch.Tensor) -> tuple[ChunkMeasures, int]:
    """Measure a chunk that `measure` can't; also return how many elements are NaN or infinite on only one side."""
    distance, magnitude, nonfinite = _distances(actual, expected)
    error = distance / (magnitude + 1)
    worst, worst_index = error.max(dim=0)
    # Expected zeros have no relative difference, and elements that are not finite are counted separately.
    relative = (distance / magnitude).nan_to_num_(nan=0.0, posinf=0.0).max()
    measured = ChunkMeasures(
        worst=float(worst),
        worst_index=int(worst_index),
        error_sum=float(error.sum()),
        absolute=float(distance.max()),
        largest=float(magnitude.max()),
        relative=float(relative),
        signal=_norm(magnitude),
        noise=_norm(distance),
    )
    return measured, nonfinite


def _norm(numbers: torch.Tensor) -> float:
    """Return the norm of non-negative numbers whose squares may overflow float64."""
    largest = float(numbers.max())
    return largest * float((numbers / largest).norm()) if 0 < largest < math.inf else largest


def _quotient(numerator: float, denominator: float) -> float:
    """Return the quotient of two non-negative numbers: 0 for 0 / 0, inf for any other number divided by 0."""
    return numerator / denominator if denominator else (math.inf if numerator else 0.0)


def _beyond_rounding(a: torch.Tensor, e: torch.Tensor, harmonic: float, rounding: float) -> tuple[int, float]:
    """Return how many elements exceed the harmonic limit, and the norm of all differences, both without rounding."""
    count, noise = 0, 0.0
    for chunks in zip(torch.split(a, _CPU_CHUNK), torch.split(e, _CPU_CHUNK), strict=True):
        distance, magnitude, _ = _distances(*chunks)
        beyond = distance > rounding
        count += int(((distance / (magnitude + 1) > harmonic) & beyond).sum())
        noise = math.hypot(noise, _norm(torch.where(beyond, distance, 0.0)))
    return count, noise


def _distances(actual: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return `|a - e|` and `|e|` in float64, and how many elements are NaN or infinite on only one side.

    Where both are the same NaN or infinity, the distance is 0; where only one is, it is infinite. The magnitude of
    elements that are not finite is 0, so that they can't hide others in a sum or a quotient.
    """
    a, e = actual.double(), expected.double()
    distance, magnitude = (a - e).abs(), e.abs()
    if not expected.dtype.is_floating_point:
        unsigned = expected.dtype == torch.uint64  # torch can't compare uint64, but can compare the bits
        same = expected.view(torch.int64) == actual.view(torch.int64) if unsigned else expected == actual
        return torch.where(same, 0.0, distance.clamp_(min=1.0)), magnitude, 0  # large integers may be equal in float64
    if math.isfinite(float(distance.sum())):  # neither side has a NaN or an infinity: by far the usual case
        return distance, magnitude, 0
    same = (e == a) | (e.isnan() & a.isnan())
    nonfinite = ~same & ~(torch.isfinite(a) & torch.isfinite(e))
    distance = torch.where(same, 0.0, torch.where(nonfinite, math.inf, distance))
    return distance, torch.where(magnitude.isfinite(), magnitude, 0.0), int(nonfinite.sum())
