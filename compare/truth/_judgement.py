"""Whether a value is off by more than rounding."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from .._pairs import in_pairs

Verdict = Literal["same", "rounding", "suspicious", "unstable", "wrong"]
SUSPICIOUS = 2.0  # times the rounding level; clean runs of the zoo stay under it in all but 0.1 % of their nodes
WRONG = 8.0
_LARGEST, _TYPICAL = 3.0, 0.5  # units: what a correct function is off by at the worst, and on the average
_EXACT = 2.0  # units that a number moves if it is only moved: the noise is up to 1.73 of them
_SUBNORMAL = {2.0**-11: 2.0**-25}  # half of float16's smallest number, on which models' numbers are rounded
_TINY = torch.finfo(torch.float64).tiny
_SAMPLE = 2**18  # elements are enough to know how large they are
_FEW, _MANY = 10, 1_000_000
_GAP, _MASK = 256, 1000  # times as large as the next smaller number, and so large: a mask


@dataclass(frozen=True)
class Judgement:
    """How far a value is from the truth, held against how far rounding takes it.

    Attributes:
        verdict: `same` (bit for bit what the model had), `rounding` (up to twice the rounding level), `suspicious` (up
            to eight times), `wrong` (more, or NaN, or another integer), `unstable` (more, but no more than it changes
            from run to run).
        ratio: how many times the rounding level it is off: at the worst element, or on the average, whichever is more.
        error: the largest absolute distance from the truth.
        eager: likewise of what the model had.
        rounding: the largest absolute distance that rounding explains, at the element where `error` is.
        spread: the largest absolute distance between runs; None if it ran once.
        note: what else there is to say: a near-tie.
    """

    verdict: Verdict
    ratio: float = 0.0
    error: float = 0.0
    eager: float = 0.0
    rounding: float = 0.0
    spread: float | None = None
    note: str = ""

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
class Truth:
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


def level_of(reference: torch.Tensor, truth: Truth, *, unit: float, length: int = 1) -> Level:
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
    """
    r, t, n = (_wide(tensor) for tensor in (reference, truth.value, truth.noisy))
    moved = _finite((n - t).abs()) * (unit / truth.unit)
    own = torch.clamp(unit * t.abs(), min=_SUBNORMAL.get(unit, 0.0))
    was = torch.where(r.isfinite() & t.isfinite(), (r - t).abs(), 0.0)
    if not bool(was.any()) and bool((moved <= _EXACT * own).all()):
        return Level(own + _TINY, 1.0, 1.0)
    scale = own + torch.clamp(moved, min=_typical(moved.reshape(-1), unit)) + _TINY
    growth = max(1.0, math.sqrt(length) / 4)
    measured = ((_largest, _LARGEST), (_mean, _TYPICAL))
    counts = _finite(t.abs()) == t.abs()
    was, moved, known = was[counts], moved[counts], scale[counts]
    if not known.numel():
        return Level(scale, _LARGEST, _TYPICAL)
    levels = [max(measure(was / known), growth * measure(moved / known), least) for measure, least in measured]
    return Level(scale, *levels)


def judge(
    actual: torch.Tensor,
    reference: torch.Tensor,
    truth: Truth,
    *,
    unit: float,
    length: int = 1,
    spread: torch.Tensor | None = None,
) -> Judgement:
    """Hold a value against the truth, by its rounding level.

    Args:
        actual: what is judged; it is not what the model had.
        reference: what the model had, of the same shape.
        truth: what it is in float64.
        unit: see `level_of`.
        length: likewise.
        spread: how far each element was from itself in further runs; None if there were none.
    """
    distance = largest_distance(spread)
    if not (actual.is_floating_point() or actual.is_complex()):
        return _of_integers(actual, reference, truth, distance)
    a, r, t = (_wide(tensor) for tensor in (actual, reference, truth.value))
    alike = (a == r) | (a.isnan() & r.isnan())  # what eager has, too, is no fault: it may have overflowed as well
    odd = ~alike & ~a.isfinite() & t.isfinite()
    if bool(odd.any()):
        return Judgement("wrong", math.inf, math.inf, spread=distance, note=f"{int(odd.sum())} elements are not finite")
    lost = ~alike & t.isinf() & (r == t)  # a mask that is left out, say
    if bool(lost.any()):
        note = f"{int(lost.sum())} elements are not infinite as they should be"
        return Judgement("wrong", math.inf, math.inf, spread=distance, note=note)
    counts = a.isfinite() & t.isfinite()
    if not bool(counts.any()):
        return Judgement("rounding", spread=distance)
    level = level_of(reference, truth, unit=unit, length=length)
    off, scale = (a - t).abs()[counts], level.scale[counts]
    was = torch.where(r.isfinite(), (r - t).abs(), 0.0)[counts]
    ratio = max(_largest(off / scale) / level.largest, _mean(off / scale) / level.typical)
    place = int((off / scale).argmax())
    verdict: Verdict = "rounding" if ratio <= SUSPICIOUS else "suspicious" if ratio <= WRONG else "wrong"
    if verdict != "rounding" and distance and float(off.max()) <= 2 * distance:
        verdict = "unstable"
    return Judgement(
        verdict,
        ratio,
        error=float(off[place]),
        eager=float(was.max()),
        rounding=level.largest * float(scale[place]),
        spread=distance,
    )


def same(spread: torch.Tensor | None = None) -> Judgement:
    """Of a value that is bit for bit what the model had."""
    return Judgement("same", spread=largest_distance(spread))


def times(ratio: float) -> str:
    """A ratio, with as many digits as one reads: `3.1`, `45`, `2,310`, `1.2e+09`."""
    return f"{ratio:.1f}" if ratio < _FEW else f"{ratio:,.0f}" if ratio < _MANY else f"{ratio:.1e}"


def largest_distance(spread: torch.Tensor | None) -> float | None:
    """How far an element was from itself in further runs, at the most; None if there were none."""
    return None if spread is None else float(spread.max()) if spread.numel() else 0.0


def _of_integers(actual: torch.Tensor, reference: torch.Tensor, truth: Truth, distance: float | None) -> Judgement:
    """Other integers are wrong, unless rounding decides which they are."""
    differs = actual != reference
    decided = (truth.noisy == truth.value) & (reference == truth.value)
    count = int(differs.sum())
    off = float((actual.double() - truth.value.double()).abs().max())
    if not bool((differs & decided).any()):
        return Judgement("rounding", 1.0, off, spread=distance, note=f"a near-tie: rounding decides {count} of them")
    verdict: Verdict = "unstable" if distance else "wrong"
    return Judgement(verdict, math.inf, off, spread=distance, note=f"{count} of {actual.numel()} are others")


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return in_pairs(tensor).detach().to(torch.float64)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _typical(moved: torch.Tensor, unit: float) -> float:
    """The root mean square, without masks.

    Masks are large numbers that stand apart from scores by some powers of ten with nothing between, and would explain
    any difference in these.
    """
    sample = moved[:: max(1, moved.numel() // _SAMPLE)]
    sample = sample[sample > 0].sort().values
    if not sample.numel():
        return 0.0
    above, below = sample[1:], sample[:-1]
    gaps = ((above > _GAP * below) & (above > _MASK * unit)).nonzero()
    return _mean(sample[: 1 + int(gaps[0])] if gaps.numel() else sample)


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.max())


def _mean(tensor: torch.Tensor) -> float:
    """The root of the mean square."""
    return float(tensor.square().mean().sqrt())
