"""Whether a value is off by more than rounding."""

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
    """How far a value is from the truth, held against how far rounding takes it.

    Attributes:
        verdict: `same` (bit for bit what the model had), `rounding` (up to twice the rounding level), `suspicious` (up
            to eight times), `wrong` (more, or another integer, or finite where the model's number is not, or the other
            way round), `unstable` (more, but no more than it changes from run to run).
        ratio: how many times the rounding level it is off: at the worst element, or on the average, whichever is more.
        error: the largest absolute distance from the truth.
        eager: likewise of what the model had.
        rounding: the largest absolute distance that rounding explains, at the element where `error` is.
        spread: the largest absolute distance between runs; None if it ran once.
        note: what else there is to say: a near-tie.
        magnitude: how large the number is that `error` is of, or the root mean square of all, masks aside, if that is
            more; 0 if it was not measured.
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
        """Whether rounding explains it."""
        return self.verdict in ("same", "rounding")

    def __str__(self) -> str:
        if self.verdict == "same":
            return "same"
        if math.isinf(self.ratio):
            return f"{self.verdict}: {self.note}" if self.note else self.verdict
        far = f"{self.error:.1e} from float64, eager {self.eager:.1e}"
        text = f"{self.verdict}: {times(self.ratio)} times rounding ({far})"
        return f"{text}; {self.note}" if self.note else text


@dataclass(frozen=True)
class Float64Value:
    """What a value is in float64.

    Attributes:
        value: it.
        noisy: it again, all that it was computed from being off by half a unit in the last place, up or down.
        unit: half a unit in the last place, relative.
    """

    value: torch.Tensor
    noisy: torch.Tensor
    unit: float


@dataclass(frozen=True)
class Level:
    """How far rounding takes the elements of a value.

    Attributes:
        scale: of each element, what half a unit in the last place comes to, of it and of all that goes into it; of the
            value's shape, float64.
        largest: how many times that the worst element may be off.
        typical: how many times that the elements may be off on the average: their root mean square.
    """

    scale: torch.Tensor
    largest: float
    typical: float


def level_of(reference: torch.Tensor, truth: Float64Value, *, unit: float, length: int = 1, sums: int = 1) -> Level:
    """The rounding level of a value.

    It is the larger of how far the reference itself is off, and of a floor: by how much the truth moves when all that
    goes into it is off by half a unit in the last place, times what a sum of `length` numbers adds to that, and no less
    than some units of the value itself. What only moves or chooses numbers, and so is exact in the model, is off by
    less than one.

    Args:
        reference: what the model had.
        truth: what it is in float64.
        unit: half a unit in the last place of the coarsest type on the way to the value, relative (float32: 2**-24).
        length: how many numbers are summed up for an element.
        sums: how many of them may be added one by one, each to all before it; products of matrices are not.
    """
    found = _Measured(reference, reference, truth, unit)
    shape = complex_as_real(truth.value).shape
    scales = [found.scale(part) for part in found.parts()]
    return Level(torch.cat(scales).reshape(shape), *found.levels(length, sums))


def judge(
    actual: torch.Tensor,
    reference: torch.Tensor,
    truth: Float64Value,
    *,
    unit: float,
    length: int = 1,
    sums: int = 1,
    spread: torch.Tensor | None = None,
) -> RoundingVerdict | None:
    """Hold a value against the truth, by its rounding level.

    Args:
        actual: what is judged; it is not what the model had, or was not in further runs.
        reference: what the model had, of the same shape.
        truth: what it is in float64.
        unit: see `level_of`.
        length: likewise.
        sums: likewise.
        spread: how far each element was from itself in further runs; None if there were none.

    Returns:
        None if the model itself is so far from float64 that no rounding explains it, as where its float16 overflows:
        then float64 is not what it computes, and says nothing of the value.
    """
    if not actual.numel():
        return same(spread)
    distance = largest_distance(spread)
    if not (actual.is_floating_point() or actual.is_complex()):
        return _of_integers(actual, reference, truth, distance)
    found = _Measured(actual, reference, truth, unit, spread)
    if distance and math.isinf(distance):
        return RoundingVerdict("unstable", math.inf, math.inf, spread=distance, note="not finite in some runs alone")
    if found.odd:
        return RoundingVerdict("wrong", math.inf, math.inf, spread=distance, note=found.odd)
    if found.unknown:
        return None
    if found.is_astray(length, sums):
        return None
    largest, typical = found.levels(length, sums)
    ratio = max(found.off.largest / largest, found.off.typical / typical)
    verdict: Verdict = "rounding" if ratio <= SUSPICIOUS else "suspicious" if ratio <= WRONG else "wrong"
    swing = max(found.swung.largest / largest, found.swung.typical / typical)
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


class _Sum:
    """What distances come to, in units: the largest, and the root of the mean square."""

    def __init__(self) -> None:
        self.largest = self._squares = 0.0
        self._count = 0

    def add(self, units: torch.Tensor) -> bool:
        """Add some; whether the largest so far is among them."""
        most, before = float(units.max()), self.largest
        self.largest = max(before, most)
        self._squares += float(torch.dot(units, units))
        self._count += units.numel()
        return most > before

    @property
    def typical(self) -> float:
        return math.sqrt(self._squares / self._count) if self._count else 0.0


class _Measured:
    """How far a value and its reference are from the truth, in units of what rounding comes to at each element.

    Elements that are not finite count for no distance: where the value and the reference have the same NaN or infinity,
    there is nothing to measure, and where one of them has another, the value is wrong.

    Attributes:
        off: of the value.
        was: of the reference.
        moved: of the truth, if what goes into it is moved.
        swung: of the value, in further runs, from itself.
        unknown: elements that are finite, but not in float64.
        error: the distance of the value where it is farthest in units.
        magnitude: see `RoundingVerdict`.
        rounding: a unit there.
        farthest: the largest distance of the value.
        eager: the largest distance of the reference.
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
        self._typical = _typical((noisy[::step] - value[::step]).abs() * self._factor, unit)
        self._flushed = _NORMAL.get(unit, 0.0)
        self._exact = self._is_exact()
        self.off, self.was, self.moved, self.swung = _Sum(), _Sum(), _Sum(), _Sum()
        self.unknown = self._infinite = self._not_infinite = self._not_nan = 0
        self.error = self.rounding = self.farthest = self.eager = 0.0
        self.magnitude = _typical(value[:: max(1, value.numel() // _FEW_OF_THEM)].abs(), 1.0)
        for part in self.parts():
            self._add(part)

    @property
    def odd(self) -> str:
        """Where the value is not finite and the reference is, or has another infinity, or the other way round."""
        counts = {
            "not finite in {} elements": self._infinite,
            "not infinite in {} elements, as it should be": self._not_infinite,
            "a number in {} elements that should be NaN": self._not_nan,
        }
        return "; ".join(text.format(count) for text, count in counts.items() if count)

    def parts(self) -> Iterator[slice]:
        """Elements at a time: they stay in the processor's cache."""
        count = self._values[0].numel()
        return (slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK))

    def scale(self, part: slice) -> torch.Tensor:
        """What half a unit comes to at some elements, and at what goes into them."""
        return self._scale(part, None if self._exact else self._moved(part))

    def levels(self, length: int, sums: int) -> tuple[float, float]:
        """How many units rounding explains: at the worst element, and on the average."""
        largest, typical = self._floors(length, sums)
        return (largest, typical) if self._exact else (max(self.was.largest, largest), max(self.was.typical, typical))

    def is_astray(self, length: int, sums: int) -> bool:
        """Whether the reference is further from the truth than any rounding takes it."""
        return self.was.typical > _ASTRAY * self._floors(length, sums)[1]

    def _floors(self, length: int, sums: int) -> tuple[float, float]:
        if self._exact:
            return 1.0, 1.0
        growth, running = max(1.0, math.sqrt(length) / 4), math.sqrt(sums)
        return (
            max(growth * self.moved.largest, running, _LARGEST),
            max(growth * self.moved.typical, running / 4, _TYPICAL),
        )

    def _own(self, part: slice) -> torch.Tensor:
        return torch.nan_to_num_(self._values[2][part].abs(), 0.0, 0.0, 0.0).mul_(self._unit).clamp_(min=self._least)

    def _moved(self, part: slice) -> torch.Tensor:
        moved = (self._values[3][part] - self._values[2][part]).abs_().mul_(self._factor)
        return torch.nan_to_num_(moved, 0.0, 0.0, 0.0)

    def _scale(self, part: slice, moved: torch.Tensor | None) -> torch.Tensor:
        own = self._own(part)
        return own.add_(_TINY) if moved is None else own.add_(moved.clamp(min=self._typical + _TINY))

    def _is_exact(self) -> bool:
        """Whether the reference is the truth itself, and no number in it is more than one that went in."""
        _, reference, value, _ = self._values
        for part in self.parts():
            known = value[part]
            if not bool(((reference[part].double() == known) | ~known.isfinite()).all()):
                return False
            if not bool((self._moved(part) <= _EXACT * self._own(part)).all()):
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
        moved = None if self._exact else self._moved(part)
        scale = self._scale(part, moved)
        per_unit = scale.reciprocal()
        if self._typical < self._flushed:
            off, was = (distance.masked_fill_(distance < self._flushed, 0.0) for distance in (off, was))
        if self.off.add(off.mul_(per_unit)):
            place = int(off.argmax())
            self.rounding = float(scale[place])
            self.error = float(off[place]) * self.rounding
            self.magnitude = max(self.magnitude, abs(float(value[place])))
        self.was.add(was.mul_(per_unit))
        if self._spread is not None:
            self.swung.add(self._spread[part] * per_unit)
        if moved is not None:
            self.moved.add(moved.mul_(per_unit))

    def _count_odd(self, actual: torch.Tensor, reference: torch.Tensor, value: torch.Tensor) -> None:
        alike = (actual == reference) | (actual.isnan() & reference.isnan())
        given, own = actual.isfinite(), reference.isfinite()
        self._infinite += int((~given & own).sum())
        self._not_infinite += int((~alike & reference.isinf()).sum())  # a mask that is left out, say
        self._not_nan += int((~alike & reference.isnan()).sum())
        self.unknown += int((~alike & given & own & ~value.isfinite()).sum())


def same(spread: torch.Tensor | None = None) -> RoundingVerdict:
    """Of a value that is bit for bit what the model had."""
    return RoundingVerdict("same", spread=largest_distance(spread))


def times(ratio: float) -> str:
    """A ratio, with as many digits as one reads: `3.1`, `45`, `2,310`, `1.2e+09`."""
    return f"{ratio:.1f}" if ratio < _FEW else f"{ratio:,.0f}" if ratio < _MANY else f"{ratio:.1e}"


def largest_distance(spread: torch.Tensor | None) -> float | None:
    """How far an element was from itself in further runs, at the most; None if there were none."""
    return None if spread is None else float(spread.max()) if spread.numel() else 0.0


def _of_integers(
    actual: torch.Tensor, reference: torch.Tensor, truth: Float64Value, distance: float | None
) -> RoundingVerdict:
    """Other integers are wrong, unless rounding decides which they are."""
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
    """The root mean square of what is not 0, without masks.

    Masks are large numbers that stand apart from scores by some powers of ten with nothing between, and would explain
    any difference in these.
    """
    sample = moved[(moved > 0) & moved.isfinite()].sort().values
    if not sample.numel():
        return 0.0
    above, below = sample[1:], sample[:-1]
    gaps = ((above > _GAP * below) & (above > _MASK * unit)).nonzero()
    usual = sample[: 1 + int(gaps[0])] if gaps.numel() else sample
    largest = usual[-1]  # squares may leave float64's range
    return float((usual / largest).square().mean().sqrt() * largest)
