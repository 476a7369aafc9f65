"""How far one tensor is from another, measured so that nothing slips through."""

import math
from dataclasses import dataclass

import torch

from filch.steal import compact, describe

from ..common._complex import complex_as_real
from ._chunk import Measured, measure, room
from ._tolerance import ANY_ERROR, Tolerance, is_coarser, largest_of, tolerance_for

_UNITS = 16  # in the last place: what the roundings on the way through a model add up to
_OUTLIER = 1000
_LEAST = 2**31  # bytes that are compared however few are stored
_MOST_REPEATED = 64
_SAMPLE = 2**18  # elements are enough to know a tensor's magnitude
_MASK = 0.9  # of the lowest number of a type is what a mask holds at least, with what is added to it
_FIRST = 2**10  # elements tell of most tensors that they are not equal
_ON_DEVICE = 2**26  # elements at a time on a GPU: few launches, and sums of their squares that float32 holds
_WITH_SUBNORMALS = frozenset({torch.float16, torch.complex32})  # no processor flushes theirs to 0
_CHUNK = 2**18  # elements at a time: they stay in the processor's cache, and are enough for all of its threads


MEASURES = (
    *("error_max", "error_mean", "absolute", "relative", "scale", "rms", "snr"),
    *("mismatched", "nonfinite", "overflowed", "clipped", "zeroed", "count"),
)


@dataclass(frozen=True)
class Difference:
    """How far `actual` is from `expected`.

    Attributes:
        close: whether they count as the same: shapes and dtypes are equal, NaNs and infinities stand in the same
            places, and all limits of the tolerance hold.
        problem: why they can't be compared number by number (shapes, dtypes, a missing value), or None.
        error_max: the largest harmonic error `|a - e| / (|e| + 1)`, half the harmonic mean of absolute and relative
            error (source: hidet's correctness report); inf where one side is not finite and the other is anything else.
        error_mean: its mean.
        absolute: the largest absolute difference.
        relative: the largest relative difference, over the elements whose expected value is not 0.
        scale: the largest absolute difference relative to the largest expected magnitude.
        rms: the root mean square of the difference relative to that of the expected tensor.
        snr: the same in decibel, as the signal-to-noise ratio -20 log10(rms); inf for equal tensors.
        mismatched: elements whose error is over the harmonic limit and more than rounding (for exact dtypes: that
            differ).
        nonfinite: elements of which one is NaN or infinite and the other is not the same.
        overflowed: elements that are NaN or infinite and should be a finite number.
        clipped: elements that stand at the end of what their type can hold, while they should be beyond it: of a
            floating-point type coarser than expected, or of the integers that they were quantised to.
        zeroed: elements that are 0 and should not be.
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
        """All that was measured, by name."""
        return {name: getattr(self, name) for name in MEASURES}

    @property
    def excess(self) -> float:
        """How many times its limit a measure is, at the most; inf if a limit of 0 does not hold."""
        return max(map(_times, self._measured, self._limits))

    def __str__(self) -> str:
        """The measures as a sentence; of those over their limits, the one that is over it most comes first."""
        if self.problem:
            return self.problem
        harmonic, scale, rms = map(_times, self._measured, self._limits)
        harmonic = harmonic if self.mismatched else 0.0  # rounding explains it
        where = f" at index {list(self.index)}" if self.index else ""
        differ = f"{self.mismatched} of {self.count} elements differ"
        error = f"greatest error {self.error_max:.1e}{where}{_allowed(self.tolerance.harmonic)}"
        told = f"absolute {self.absolute:.1e}, relative to the tensor's scale {self.scale:.1e}"
        if scale > 1 or self.tolerance.harmonic == ANY_ERROR:
            told += _allowed(self.tolerance.scale)
        parts = [(harmonic, f"{differ}; {error}"), (scale, told)]
        if not self.close:
            parts.sort(key=lambda part: -max(part[0], 1))
        if rms > max(harmonic, scale, 1):
            told = f"root mean square {self.rms:.1e} relative to the tensor's{_allowed(self.tolerance.rms)}"
            parts.insert(0, (rms, told))
        odd = [f"{self.nonfinite} NaN or inf on one side"] if self.nonfinite else []
        counts = {"overflowed": self.overflowed, "clipped": self.clipped, "became 0": self.zeroed}
        return "; ".join(
            [*odd, *(text for _, text in parts), *(f"{count} {what}" for what, count in counts.items() if count)]
        )

    @property
    def _measured(self) -> tuple[float, float, float]:
        return self.error_max, self.scale, self.rms

    @property
    def _limits(self) -> tuple[float, float, float]:
        return self.tolerance.harmonic, self.tolerance.scale, self.tolerance.rms


def _times(measured: float, limit: float) -> float:
    return measured / limit if limit else math.inf if measured else 0.0


def _allowed(limit: float) -> str:
    return "" if limit == ANY_ERROR else f" (up to {limit:.1e} allowed)"


def compare_tensors(
    expected: torch.Tensor | None,
    actual: torch.Tensor | None,
    *,
    tolerance: float | Tolerance | None = None,
    magnitude: float = 0.0,
    lower_precision: bool = False,
) -> Difference:
    """Measure how far `actual` is from `expected`.

    Nothing broadcasts, no dtype is promoted, NaN is equal to NaN alone and an infinity to itself. Differences are taken
    in a type that holds them: float32 and below in float64, integers by equality. Complex numbers are compared as pairs
    of real ones, in one dimension more.

    Args:
        expected: the reference; None if there is none.
        actual: what is judged; None if it is missing.
        tolerance: see `tolerance_for`.
        magnitude: the magnitude of what went into the elements that differ, if it is larger than theirs (see
            `typical_magnitude`). Differences of up to 16 units in the last place of it are rounding, however small the
            element that has them (but no more than the harmonic limit of it: tolerance 0 asks for equality). So are
            differences under the dtype's smallest normal number, as processors may flush such to 0; float16 has its
            smallest number instead, as its subnormal numbers are in use.
        lower_precision: let `actual` be of a coarser floating-point type than `expected`: the numbers are compared, and
            the coarser type says how far they may be apart. What is near the lowest number of the one type (masks are)
            and near that of the other, or -inf, is the same.
    """
    if expected is None or actual is None:
        side = "expected value" if expected is None else "value"
        return Difference(close=False, problem=f"the {side} is missing")
    for tensor in (expected, actual):
        if tensor.layout is not torch.strided or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            return Difference(close=False, problem=f"a {kind} tensor can't be compared: convert it to a dense one")
    lowered = lower_precision and is_coarser(actual.dtype, expected.dtype)
    if expected.shape != actual.shape or (expected.dtype != actual.dtype and not lowered):
        what = "shape" if expected.shape != actual.shape else "dtype"
        problem = f"the {what} differs: {describe(actual)} where {describe(expected)} is expected"
        return Difference(close=False, problem=problem)
    dtype = actual.dtype
    limits = tolerance_for(dtype, tolerance)
    expected, actual, times = _seen_once(expected, actual)
    if (size := max(expected.nbytes, actual.nbytes)) > _LEAST and size > _MOST_REPEATED * _held(expected, actual):
        problem = f"numbers are repeated to {size / 2**30:,.1f} GiB, more than {_MOST_REPEATED} times what is stored"
        return Difference(close=False, problem=f"{problem}: they are not compared")
    expected = expected.to(actual.device)  # where it was computed, it is measured
    if lowered:
        expected, actual = _in_one_type(expected, actual)
    expected, actual = complex_as_real(expected), complex_as_real(actual)
    e, a = flat(expected), flat(actual)
    if torch.equal(e[:_FIRST], a[:_FIRST]) and torch.equal(e, a):  # a NaN is not, here, and is looked at more closely
        return _no_difference(times * expected.numel(), limits)
    step = min(_CHUNK if a.device.type == "cpu" else _ON_DEVICE, e.numel())
    totals = _Totals(largest_of(dtype), room(step, a.device))
    for start in range(0, e.numel(), step):
        totals.add(e[start : start + step], a[start : start + step], start)
    rounding, mismatched, rms = 0.0, 0, totals.rms
    if totals.worst > limits.harmonic or totals.scale > limits.scale or rms > limits.rms:
        rounding = _rounding(dtype, max(typical_magnitude(e[e != a]), magnitude), limits)
        mismatched, noise = _beyond_rounding(e, a, limits.harmonic, rounding)
        rms = _quotient(noise, totals.signal)
    in_scale = totals.scale <= limits.scale or totals.absolute <= rounding
    return totals.difference(
        close=not mismatched and in_scale and rms <= limits.rms,
        mismatched=mismatched,
        limits=limits,
        shape=tuple(expected.shape),
        times=times,
    )


def masked_alike(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """What is judged, with the masks of what it should be where it has those of a coarser type."""
    if not is_coarser(actual.dtype, expected.dtype):
        return actual
    wide = torch.promote_types(expected.dtype, torch.float32)
    return torch.where(_masks(expected, actual), expected.to(wide), actual.to(wide))


def _held(*tensors: torch.Tensor) -> int:
    """The bytes of some tensors without what they repeat."""
    return sum(compact(tensor).nbytes for tensor in tensors)


def _seen_once(expected: torch.Tensor, actual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Both without the dimensions along which both repeat their numbers, and how often these are repeated.

    A few bytes can stand for terabytes.
    """
    times = 1
    for dim, size in enumerate(expected.shape):
        if size > 1 and expected.stride(dim) == actual.stride(dim) == 0:
            expected, actual = expected.detach().narrow(dim, 0, 1), actual.detach().narrow(dim, 0, 1)
            times *= size
    return expected, actual, times


def _in_one_type(expected: torch.Tensor, actual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in a type that holds their numbers; a mask of the coarser type stands for that of the other one."""
    wide = torch.promote_types(expected.dtype, torch.float32)  # float32 holds float16 next to bfloat16
    masked = _masks(expected, actual)
    expected, actual = expected.to(wide), actual.to(wide)
    return (torch.where(masked, actual, expected) if bool(masked.any()) else expected), actual


def _masks(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """Where there is a mask on both sides.

    Masks hold the lowest number of their type. In a coarser type that is another one, less what is added to it, or
    -inf. The largest number is no mask: what should be it and is inf has overflowed.
    """
    end, lower_end = largest_of(expected.dtype), largest_of(actual.dtype)
    return expected.isfinite() & (expected.double() < -_MASK * end) & (actual.double() < -_MASK * lower_end)


def _no_difference(count: int, limits: Tolerance) -> Difference:
    return Difference(
        close=True,
        error_max=0.0,
        error_mean=0.0,
        absolute=0.0,
        relative=0.0,
        scale=0.0,
        rms=0.0,
        snr=math.inf,
        count=count,
        tolerance=limits,
    )


def _rounding(dtype: torch.dtype, largest: float, limits: Tolerance) -> float:
    """The absolute difference that rounding explains, where the largest number is `largest`."""
    if dtype.itemsize == 1 or not (dtype.is_floating_point or dtype.is_complex):
        return 0.0  # 16 units of a float8 are more than its whole range
    kind = torch.finfo(dtype)
    subnormal = (kind.smallest_normal * (kind.eps if dtype in _WITH_SUBNORMALS else 1)) if limits.harmonic else 0.0
    return max(min(_UNITS * kind.eps, limits.harmonic) * largest, subnormal)


def typical_magnitude(tensor: torch.Tensor) -> float:
    """The largest absolute value among a tensor's finite numbers, outliers aside; 0 if it has none.

    Masks hold numbers like -3.4e38 beside scores of size 1, and 'rounding' of those would explain any difference in
    these. So what is over 1000 times the lower quartile does not count: no reduction adds up numbers so far apart.
    """
    sample = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // _SAMPLE)]
    size = sample.abs().double() if sample.is_complex() else sample.double().abs()
    size = size[size.isfinite() & (size > 0)]
    if not size.numel():
        return 0.0
    usual = size <= _OUTLIER * size.kthvalue(1 + size.numel() // 4).values
    return float(size[usual].max())


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor, without its graph and its shape."""
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    # Packed float4 has no arithmetic; its bytes are compared as they are.
    return plain.view(torch.uint8) if plain.dtype == torch.float4_e2m1fn_x2 else plain


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor in row-major order, as uint8 in one dimension."""
    row = flat(tensor).contiguous()
    if row.stride() != (1,):  # that of a single number may be 0, which `view` does not bear
        row = row.clone(memory_format=torch.contiguous_format)
    return row.view(torch.uint8)


class _Totals:
    """What the chunks add up to.

    Args:
        most: the largest number that the type of what is judged can hold.
        within: the memory to measure in (see `room`).
    """

    def __init__(self, most: float, within: torch.Tensor) -> None:
        self._most = most
        self._room = within
        self._overflowed = self._clipped = 0
        self.worst, self._where = -1.0, 0
        self.absolute = self.largest = 0.0
        self._sum = self._relative = self.signal = self._noise = 0.0
        self._nonfinite = self._zeroed = self._count = 0

    @property
    def scale(self) -> float:
        """The largest absolute difference relative to the largest expected magnitude."""
        return _quotient(self.absolute, self.largest)

    @property
    def rms(self) -> float:
        """The root mean square of the difference relative to that of the expected tensor."""
        return _quotient(self._noise, self.signal)

    def add(self, expected: torch.Tensor, actual: torch.Tensor, start: int) -> None:
        """Add a chunk whose first element is that of index `start`."""
        measured, odd = measure(expected, actual, self.worst, self._room), 0
        if measured is None:
            measured, odd = _measured_wide(expected, actual)
        if measured.worst > self.worst:
            self.worst, self._where = measured.worst, start + measured.where
        self._sum += measured.total
        self.absolute = max(self.absolute, measured.absolute)
        self.largest = max(self.largest, measured.largest)
        self._relative = max(self._relative, measured.relative)
        self.signal = math.hypot(self.signal, measured.signal)
        self._noise = math.hypot(self._noise, measured.noise)
        self._nonfinite += odd
        if odd or measured.largest > self._most:  # nothing else can have overflowed or be clipped
            overflowed, clipped = _beyond(expected, actual, self._most)
            self._overflowed += overflowed
            self._clipped += clipped
        if odd or measured.relative >= 1:  # it is of an element that becomes 0
            self._zeroed += _zeroed(expected, actual)
        self._count += expected.numel()

    def difference(
        self, *, close: bool, mismatched: int, limits: Tolerance, shape: tuple[int, ...], times: int
    ) -> Difference:
        """What was measured, of elements of which each is there so many times."""
        return Difference(
            close=close,
            error_max=self.worst,
            error_mean=self._sum / self._count,
            absolute=self.absolute,
            relative=self._relative,
            scale=self.scale,
            rms=self.rms,
            snr=_decibel(self.rms),
            mismatched=times * mismatched,
            nonfinite=times * self._nonfinite,
            overflowed=times * self._overflowed,
            clipped=times * self._clipped,
            zeroed=times * self._zeroed,
            count=times * self._count,
            index=_unravel(self._where, shape),
            tolerance=limits,
        )


def _measured_wide(expected: torch.Tensor, actual: torch.Tensor) -> tuple[Measured, int]:
    """What a chunk of any numbers adds up to, and how many elements are NaN or infinite on one side alone."""
    distance, size, odd = _distances(expected, actual)
    error = distance / (size + 1)
    worst, where = error.max(dim=0)
    # Nothing is relative to 0, and what is not finite is counted apart.
    relative = (distance / size).nan_to_num_(nan=0.0, posinf=0.0).max()
    sums = float(error.sum()), float(distance.max()), float(size.max()), float(relative)
    return Measured(float(worst), int(where), *sums, _norm(size), _norm(distance)), odd


def _norm(sizes: torch.Tensor) -> float:
    """The root of the sum of the squares of numbers from 0 on, whose squares may leave float64's range."""
    largest = float(sizes.max())
    return largest * float((sizes / largest).norm()) if 0 < largest < math.inf else largest


def _quotient(part: float, whole: float) -> float:
    return part / whole if whole else (math.inf if part else 0.0)


def _decibel(rms: float) -> float:
    return -20 * math.log10(rms) if 0 < rms < math.inf else -math.inf if rms else math.inf


def _beyond_rounding(e: torch.Tensor, a: torch.Tensor, harmonic: float, rounding: float) -> tuple[int, float]:
    """How many elements are over the harmonic limit, and the norm of all differences, rounding left out of both."""
    count, noise = 0, 0.0
    for chunks in zip(torch.split(e, _CHUNK), torch.split(a, _CHUNK), strict=True):
        distance, size, _ = _distances(*chunks)
        beyond = distance > rounding
        count += int(((distance / (size + 1) > harmonic) & beyond).sum())
        noise = math.hypot(noise, _norm(torch.where(beyond, distance, 0.0)))
    return count, noise


def _zeroed(expected: torch.Tensor, actual: torch.Tensor) -> int:
    return int(((expected.double() != 0) & (actual.double() == 0)).sum())


def _distances(expected: torch.Tensor, actual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """`|a - e|` and `|e|` in float64, and how many elements are NaN or infinite on one side alone.

    Where both are the same NaN or infinity, the distance is 0; where only one is, it is infinite. The size of what is
    not finite is 0, so that it can't hide another element in a sum or a quotient.
    """
    if not expected.dtype.is_floating_point:
        return _integer_distances(expected, actual)
    e, a = expected.double(), actual.double()
    distance, size = (a - e).abs(), e.abs()
    if math.isfinite(float(distance.sum())):  # neither side has a NaN or an infinity: by far the usual case
        return distance, size, 0
    same = (e == a) | (e.isnan() & a.isnan())
    odd = ~same & ~(torch.isfinite(a) & torch.isfinite(e))
    distance = torch.where(same, 0.0, torch.where(odd, math.inf, distance))
    return distance, torch.where(size.isfinite(), size, 0.0), int(odd.sum())


def _beyond(expected: torch.Tensor, actual: torch.Tensor, most: float) -> tuple[int, int]:
    """How many elements overflowed, and how many were clipped to `most`."""
    e, a = expected.double(), actual.double()
    overflowed, clipped = e.isfinite() & ~a.isfinite(), (a.abs() == most) & (e.abs() > most)
    return int(overflowed.sum()), int(clipped.sum())


def _integer_distances(expected: torch.Tensor, actual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    unsigned = expected.dtype == torch.uint64  # torch can't compare these, but their bits
    same = expected.view(torch.int64) == actual.view(torch.int64) if unsigned else expected == actual
    e, a = expected.to(torch.float64), actual.to(torch.float64)
    # Differences of large integers may round to 0 in float64; they differ all the same.
    return torch.where(same, 0.0, (a - e).abs().clamp_(min=1.0)), e.abs(), 0


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        flat, position = divmod(flat, size)
        index.append(position)
    return tuple(reversed(index))
