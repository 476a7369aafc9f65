"""Decide whether rounding explains the error of a value, measured in float64."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from ..common._complex import complex_as_real

Verdict = Literal["same", "rounding", "suspicious", "unstable", "wrong"]
SUSPICIOUS = 2.0  # times the rounding level; clean runs of the zoo stay under it in all but 0.1 % of their nodes
WRONG = 8.0
_LARGEST, _TYPICAL = 3.0, 0.5  # units: what a correct function is off by at the worst, and on the average
_EXACT = 2.0  # units that a number moves if it is only moved: the noise is up to 1.73 of them
_ASTRAY = 64.0  # times what rounding explains on the average: eager itself computes something else
_SUBNORMAL = {2.0**-11: 2.0**-25}  # half of float16's smallest number, on which models' numbers are rounded
_TINY = torch.finfo(torch.float64).tiny
# The smallest normal numbers of float32, bfloat16 and float64 by their units: processors may flush what is less to 0.
_NORMAL = {2.0**-24: 2.0**-126, 2.0**-8: 2.0**-126, 2.0**-53: _TINY}
_SAMPLE, _FEW_OF_THEM = 2**14, 2**10  # elements are enough to know how large they are
_CHUNK = 2**16  # elements at a time
_FEW, _MANY = 10, 1_000_000
_GAP, _MASK = 256, 1000  # times as large as the next smaller number, and so large: a mask


@dataclass(frozen=True)
class RoundingVerdict:
    """The error of a value relative to float64, compared with the error that rounding explains.

    Attributes:
        verdict: `same` (bitwise equal to the model's value), `rounding` (up to 2 times the rounding level),
            `suspicious` (up to 8 times), `wrong` (more; or a different integer; or only one of the value and the
            model's is finite), `unstable` (more, but no more than it varies between runs).
        ratio: the error divided by the rounding level: of the worst element or the root mean square, the larger one.
        error: the largest absolute error relative to float64.
        eager: the same of the model's own value.
        rounding: the largest absolute error that rounding explains, at the element of `error`.
        spread: the largest absolute difference between runs; None for a single run.
        note: further details, for example a near-tie.
        magnitude: the magnitude of the element of `error`, or the root mean square of all elements except masks if that
            is larger; 0 if it was not measured.
    """

    verdict: Verdict
    ratio: float = 0.0
    error: float = 0.0
    eager: float = 0.0
    rounding: float = 0.0
    spread: float | None = None
    note: str = ""
    magnitude: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether rounding explains the error."""
        return self.verdict in ("same", "rounding")

    def __str__(self) -> str:
        if self.verdict == "same":
            return "same"
        if math.isinf(self.ratio):
            return f"{self.verdict}: {self.note}" if self.note else self.verdict
        far = f"{self.error:.1e} from float64, eager {self.eager:.1e}"
        text = f"{self.verdict}: {format_ratio(self.ratio)} times rounding ({far})"
        return f"{text}; {self.note}" if self.note else text


@dataclass(frozen=True)
class Float64Value:
    """A value computed in float64.

    Attributes:
        value: the float64 value.
        noisy: the same with every input of the computation changed by half a unit in the last place, up or down.
        unit: half a unit in the last place of the model's dtype, relative.
    """

    value: torch.Tensor
    noisy: torch.Tensor
    unit: float


@dataclass(frozen=True)
class RoundingLevel:
    """The error of a value that rounding explains.

    Attributes:
        scale: for each element, the error from half a unit in the last place of the element and of all its inputs;
            float64, of the value's shape.
        largest: the allowed error of the worst element, as a multiple of `scale`.
        typical: the allowed root mean square error, as a multiple of `scale`.
    """

    scale: torch.Tensor
    largest: float
    typical: float


def rounding_level(
    reference: torch.Tensor, truth: Float64Value, *, unit: float, length: int = 1, sums: int = 1
) -> RoundingLevel:
    """Return the rounding level of a value.

    It is the larger of the reference's own error and a floor. The floor is the change of the float64 value when all its
    inputs change by half a unit in the last place, times a factor for the growth in a sum of `length` numbers, and at
    least a few units of the value itself. An exact operation, which only moves or selects numbers, has a level of 1.

    Args:
        reference: the model's value.
        truth: the value in float64.
        unit: half a unit in the last place of the coarsest dtype on the path to the value, relative (float32: 2**-24).
        length: how many numbers are summed for an element.
        sums: how many of them may be added sequentially; matrix products use blocked summation.
    """
    found = _Errors(reference, reference, truth, unit)
    shape = complex_as_real(truth.value).shape
    scales = [found.scale(part) for part in found.parts()]
    return RoundingLevel(torch.cat(scales).reshape(shape), *found.levels(length, sums))


def rounding_verdict(
    actual: torch.Tensor,
    reference: torch.Tensor,
    truth: Float64Value,
    *,
    unit: float,
    length: int = 1,
    sums: int = 1,
    spread: torch.Tensor | None = None,
) -> RoundingVerdict | None:
    """Judge a value by its error relative to float64 and its rounding level.

    Args:
        actual: the value to judge, which differs from the reference in this run or a further one.
        reference: the model's value, of the same shape.
        truth: the value in float64.
        unit: see `rounding_level`.
        length: see `rounding_level`.
        sums: see `rounding_level`.
        spread: the largest difference of each element between runs; None for a single run.

    Returns:
        The verdict, or None if rounding does not explain the model's own error (its float16 overflows, for example):
        float64 is then no reference.
    """
    if not actual.numel():
        return identical_verdict(spread)
    distance = largest_distance(spread)
    if not (actual.is_floating_point() or actual.is_complex()):
        return _of_integers(actual, reference, truth, distance)
    found = _Errors(actual, reference, truth, unit, spread)
    if distance and math.isinf(distance):
        return RoundingVerdict("unstable", math.inf, math.inf, spread=distance, note="not finite in some runs alone")
    if found.nonfinite_note:
        return RoundingVerdict("wrong", math.inf, math.inf, spread=distance, note=found.nonfinite_note)
    if found.unknown:
        return None
    if found.reference_is_unreliable(length, sums):
        return None
    largest, typical = found.levels(length, sums)
    ratio = max(found.value_error.largest / largest, found.value_error.typical / typical)
    verdict: Verdict = "rounding" if ratio <= SUSPICIOUS else "suspicious" if ratio <= WRONG else "wrong"
    swing = max(found.run_difference.largest / largest, found.run_difference.typical / typical)
    if distance and (swing > SUSPICIOUS if verdict == "rounding" else found.farthest <= 2 * distance):
        verdict, ratio = "unstable", max(ratio, swing)
    return RoundingVerdict(
        verdict,
        ratio,
        error=found.error,
        eager=found.eager,
        rounding=largest * found.rounding,
        spread=distance,
        note="" if math.isfinite(ratio) else "further off than a float64 can hold",
        magnitude=found.magnitude,
    )


class _Accumulator:
    """Accumulate the largest value and the root mean square of errors in units of `RoundingLevel.scale`."""

    def __init__(self) -> None:
        self.largest = self._squares = 0.0
        self._count = 0

    def add(self, units: torch.Tensor) -> bool:
        """Add errors and return whether they include a new maximum."""
        most, before = float(units.max()), self.largest
        self.largest = max(before, most)
        self._squares += float(torch.dot(units, units))
        self._count += units.numel()
        return most > before

    @property
    def typical(self) -> float:
        return math.sqrt(self._squares / self._count) if self._count else 0.0


class _Errors:
    """The errors of a value and its reference relative to float64, in units of each element's rounding error.

    Elements that are not finite have no error: where the value and the reference have the same NaN or infinity, there
    is nothing to measure; where they differ, the value is wrong.

    Attributes:
        off: the error of the value.
        was: the error of the reference.
        moved: the change of the float64 value when its inputs change.
        swung: the difference of the value between runs.
        unknown: how many elements are finite, but not in float64.
        error: the absolute error of the element with the largest error in units.
        magnitude: see `RoundingVerdict`.
        rounding: the unit of that element.
        farthest: the largest absolute error of the value.
        eager: the largest absolute error of the reference.
    """

    def __init__(
        self,
        actual: torch.Tensor,
        reference: torch.Tensor,
        truth: Float64Value,
        unit: float,
        spread: torch.Tensor | None = None,
    ) -> None:
        self._spread = None if spread is None else spread.reshape(-1)
        self._values = [
            complex_as_real(tensor.detach()).reshape(-1) for tensor in (actual, reference, truth.value, truth.noisy)
        ]
        self._unit, self._factor = unit, unit / truth.unit
        self._least = _SUBNORMAL.get(unit, 0.0)
        _, _, value, noisy = self._values
        step = max(1, value.numel() // _SAMPLE)
        self._typical_noise = _typical((noisy[::step] - value[::step]).abs() * self._factor, unit)
        self._smallest_normal = _NORMAL.get(unit, 0.0)
        self._is_exact = self._reference_is_exact()
        self.value_error, self.reference_error, self.noise_change, self.run_difference = (
            _Accumulator() for _ in range(4)
        )
        self.unknown = self._infinite = self._not_infinite = self._not_nan = 0
        self.error = self.rounding = self.farthest = self.eager = 0.0
        self.magnitude = _typical(value[:: max(1, value.numel() // _FEW_OF_THEM)].abs(), 1.0)
        for part in self.parts():
            self._add(part)

    @property
    def nonfinite_note(self) -> str:
        """Describe elements that are NaN or infinite in only one of value and reference, or differently infinite."""
        counts = {
            "not finite in {} elements": self._infinite,
            "not infinite in {} elements, as it should be": self._not_infinite,
            "a number in {} elements that should be NaN": self._not_nan,
        }
        return "; ".join(text.format(count) for text, count in counts.items() if count)

    def parts(self) -> Iterator[slice]:
        """Return slices of elements that fit the processor's cache."""
        count = self._values[0].numel()
        return (slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK))

    def scale(self, part: slice) -> torch.Tensor:
        """Return `RoundingLevel.scale` of some elements."""
        return self._scale(part, None if self._is_exact else self._noise(part))

    def levels(self, length: int, sums: int) -> tuple[float, float]:
        """Return how many units rounding explains: of the worst element, and as root mean square."""
        largest, typical = self._minimum_levels(length, sums)
        if self._is_exact:
            return largest, typical
        return max(self.reference_error.largest, largest), max(self.reference_error.typical, typical)

    def reference_is_unreliable(self, length: int, sums: int) -> bool:
        """Return whether rounding does not explain the reference's own error."""
        return self.reference_error.typical > _ASTRAY * self._minimum_levels(length, sums)[1]

    def _minimum_levels(self, length: int, sums: int) -> tuple[float, float]:
        """Return the least levels, in units: of the worst element, and as root mean square."""
        if self._is_exact:
            return 1.0, 1.0
        # Rounding errors add up as the square root of their number.
        growth, running = max(1.0, math.sqrt(length) / 4), math.sqrt(sums)
        return (
            max(growth * self.noise_change.largest, running, _LARGEST),
            max(growth * self.noise_change.typical, running / 4, _TYPICAL),
        )

    def _own_unit(self, part: slice) -> torch.Tensor:
        return torch.nan_to_num_(self._values[2][part].abs(), 0.0, 0.0, 0.0).mul_(self._unit).clamp_(min=self._least)

    def _noise(self, part: slice) -> torch.Tensor:
        moved = (self._values[3][part] - self._values[2][part]).abs_().mul_(self._factor)
        return torch.nan_to_num_(moved, 0.0, 0.0, 0.0)

    def _scale(self, part: slice, moved: torch.Tensor | None) -> torch.Tensor:
        own = self._own_unit(part)
        return own.add_(_TINY) if moved is None else own.add_(moved.clamp(min=self._typical_noise + _TINY))

    def _reference_is_exact(self) -> bool:
        """Return whether the reference equals the float64 value, and each number in it is one of the inputs."""
        _, reference, value, _ = self._values
        for part in self.parts():
            known = value[part]
            if not bool(((reference[part].double() == known) | ~known.isfinite()).all()):
                return False
            if not bool((self._noise(part) <= _EXACT * self._own_unit(part)).all()):
                return False
        return True

    def _add(self, part: slice) -> None:
        actual, reference, value, _ = (tensor[part].double() for tensor in self._values)  # float8 does nothing itself
        off, was = (actual - value).abs_(), (reference - value).abs_()
        farthest, eager = float(off.max()), float(was.max())
        if not math.isfinite(farthest + eager):  # by far the usual case is that it is
            self._count_odd(actual, reference, value)
            known = value.isfinite()
            off, was = (
                torch.where(known & tensor.isfinite(), distance, 0.0)
                for tensor, distance in ((actual, off), (reference, was))
            )
            farthest, eager = float(off.max()), float(was.max())
        self.farthest, self.eager = max(self.farthest, farthest), max(self.eager, eager)
        moved = None if self._is_exact else self._noise(part)
        scale = self._scale(part, moved)
        per_unit = scale.reciprocal()
        if self._typical_noise < self._smallest_normal:
            off, was = (distance.masked_fill_(distance < self._smallest_normal, 0.0) for distance in (off, was))
        if self.value_error.add(off.mul_(per_unit)):
            place = int(off.argmax())
            self.rounding = float(scale[place])
            self.error = float(off[place]) * self.rounding
            self.magnitude = max(self.magnitude, abs(float(value[place])))
        self.reference_error.add(was.mul_(per_unit))
        if self._spread is not None:
            self.run_difference.add(self._spread[part] * per_unit)
        if moved is not None:
            self.noise_change.add(moved.mul_(per_unit))

    def _count_odd(self, actual: torch.Tensor, reference: torch.Tensor, value: torch.Tensor) -> None:
        alike = (actual == reference) | (actual.isnan() & reference.isnan())
        given, own = actual.isfinite(), reference.isfinite()
        self._infinite += int((~given & own).sum())
        self._not_infinite += int((~alike & reference.isinf()).sum())  # a mask that is left out, say
        self._not_nan += int((~alike & reference.isnan()).sum())
        self.unknown += int((~alike & given & own & ~value.isfinite()).sum())


def identical_verdict(spread: torch.Tensor | None = None) -> RoundingVerdict:
    """Return the verdict of a value that is bitwise equal to the reference."""
    return RoundingVerdict("same", spread=largest_distance(spread))


def format_ratio(ratio: float) -> str:
    """Format a ratio with few digits: `3.1`, `45`, `2,310`, `1.2e+09`."""
    return f"{ratio:.1f}" if ratio < _FEW else f"{ratio:,.0f}" if ratio < _MANY else f"{ratio:.1e}"


def largest_distance(spread: torch.Tensor | None) -> float | None:
    """Return the largest difference of an element between runs; None for a single run."""
    return None if spread is None else float(spread.max()) if spread.numel() else 0.0


def _of_integers(
    actual: torch.Tensor, reference: torch.Tensor, truth: Float64Value, distance: float | None
) -> RoundingVerdict:
    """Judge integers: a different one is wrong, unless it is decided by rounding."""
    differs = actual != reference
    decided = (truth.noisy == truth.value) & (reference == truth.value)
    count = int(differs.sum())
    if distance and not count:  # it was another one in further runs
        note = f"another one in further runs, by up to {distance:g}"
        return RoundingVerdict("unstable", math.inf, spread=distance, note=note)
    off = float((actual.double() - truth.value.double()).abs().max())
    if not bool((differs & decided).any()):
        return RoundingVerdict(
            "rounding", 1.0, off, spread=distance, note=f"a near-tie: rounding decides {count} of them"
        )
    verdict: Verdict = "unstable" if distance else "wrong"
    instead = f"{actual[differs][0].item()} instead of {reference[differs][0].item()}"
    return RoundingVerdict(
        verdict, math.inf, off, spread=distance, note=f"{instead} in {count} of {actual.numel()} elements"
    )


def _typical(moved: torch.Tensor, unit: float) -> float:
    """Return the root mean square of the nonzero elements, without masks.

    Masks are numbers several powers of ten larger than the scores beside them. Included, they would explain any error
    of the scores.
    """
    sample = moved[(moved > 0) & moved.isfinite()].sort().values
    if not sample.numel():
        return 0.0
    above, below = sample[1:], sample[:-1]
    gaps = ((above > _GAP * below) & (above > _MASK * unit)).nonzero()
    usual = sample[: 1 + int(gaps[0])] if gaps.numel() else sample
    largest = usual[-1]  # squares may leave float64's range
    return float((usual / largest).square().mean().sqrt() * largest)
