"""Decide whether rounding explains the error of a value, measured in float64."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from ..common._complex import complex_as_real
from ._decision_values import decided, differing
from ._noise import unit_of

Verdict = Literal["same", "rounding", "decision", "suspicious", "unstable", "wrong"]
# The error divided by the rounding level from which on a value is suspicious or wrong. In correct runs of the test
# models, all but 0.1 % of the nodes are below the former.
SUSPICIOUS, WRONG = 2.0, 8.0
MIN_LARGEST, MIN_TYPICAL = 3.0, 0.5  # the least rounding levels: correct functions have errors of so many units
_MAX_COPIED = 2.0  # units by which noise may change a number that is only moved or selected: up to 1.43
UNRELIABLE = 64.0  # times the typical rounding level of the model: eager PyTorch itself computes something else
# How much further the model's value may be from float64 than the run's, in rounding levels of float16 or bfloat16, of
# which 64 are up to an eighth of the number. In correct runs, also of twelve layers, this is up to 1.
_DISPUTED = 2.0
SMALLEST_UNIT = {2.0**-11: 2.0**-25}  # absolute: half of float16's smallest number
_DTYPES = {2.0**-11: torch.float16, 2.0**-8: torch.bfloat16}  # of coarse units
BOTH_WRONG = "both are wrong: the reference has the same numbers"
_IN_COMMON = 10.0  # times the distance of a value from its reference: both have the same error
_TINY = torch.finfo(torch.float64).tiny
# The smallest normal numbers of float32, bfloat16 and float64 by their units: processors may flush what is less to 0.
SMALLEST_NORMAL = {2.0**-24: 2.0**-126, 2.0**-8: 2.0**-126, 2.0**-53: _TINY}
_NOISE_SAMPLE, _MAGNITUDE_SAMPLE = 2**14, 2**10  # elements that suffice to estimate a root mean square
# Elements at a time, which fit in the processor's cache. For more, torch would start its threads in each pass, which
# takes longer than the pass, and milliseconds if other processes keep a thread from running.
_CHUNK = 2**15
# Where at least half of the elements change by at most so many units, those that change by far more, and by far more
# than the others, are where a function jumps.
_STEADY, _MOST_STEADY, _JUMP = 8, 0.5, 2**10
_FEW, _MANY = 10, 1_000_000  # limits of the number formats of `format_ratio`
_MASK = 1000  # a mask is larger than this
_MASK_GAP = 256  # a mask is more than so many times as large as any number that is not one
_MASK_SPREAD = 64  # the largest mask is at most so many times as large as the smallest: masks may be added up
MASK_NOISE = 4.0  # units that the noise of masks typically has at most: they are constants, to which scores are added


@dataclass(frozen=True)
class Flips:
    """The decisions of a value that differ from the model's because rounding decides them (see `Decisions`).

    Attributes:
        count: how many differ.
        elements: how many there are.
        margin: how far the compared numbers are, in float64, from the point where the decision changes: of the element
            where this is the largest multiple of `level`. None if the operator is not known to compare numbers.
        level: how far rounding may move these numbers: the sum of their rounding levels. None if `margin` is.
        is_order: whether they are the same indices in another order, which the operator leaves open
            (`topk(..., sorted=False)`).
    """

    count: int
    elements: int
    margin: float | None = None
    level: float | None = None
    is_order: bool = False

    @property
    def ratio(self) -> float | None:
        """The margin as a multiple of the rounding level; None if it is not known."""
        if self.margin is None or self.level is None:
            return None
        return self.margin / self.level if self.level else math.inf if self.margin else 0.0

    def __str__(self) -> str:
        text = f"{self.count:,} of {self.elements:,} differ"
        if self.is_order:
            return f"{text}, which is their order alone (sorted=False)"
        if self.ratio is None:
            return text
        return f"{text}, margin {self.ratio:.2g} times rounding ({self.margin:.1e} absolute)"


@dataclass(frozen=True)
class RoundingVerdict:
    """The error of a value relative to float64, compared with the error that rounding explains.

    Attributes:
        verdict: `same` (bitwise equal to the model's value), `rounding` (up to 2 times the rounding level), `decision`
            (decisions that differ because rounding decides them, or indices in an order that is left open),
            `suspicious` (up to 8 times), `wrong` (more; or a different decision; or only one of the value and the
            model's is finite), `unstable` (more, but no more than it varies between runs).
        ratio: the error divided by the rounding level: of the worst element or the root mean square, the larger one.
            Of a decision, the margin divided by its rounding level; 1 if it is not known.
        error: the largest absolute error relative to float64.
        eager: the same of the model's own value.
        rounding: the largest absolute error that rounding explains, at the element of `error`.
        spread: the largest absolute difference between runs; None for a single run.
        note: further details, for example a near-tie.
        magnitude: the magnitude of the element of `error`, or the root mean square of all elements except masks if that
            is larger; 0 if it was not measured.
        flips: the decisions of the value that differ; None if there are none.
        decided: how much the decisions that differ before the value change it: the largest absolute difference between
            what float64 computes from them and the model's value; infinite if they have different shapes. `error` is
            relative to the former. None if the value does not follow from such a decision, or was not judged by it.
        follows: the names of the values with these decisions, in the order of execution.
        disputed: by how many rounding levels of float16 or bfloat16 the model's value is further from float64 than this
            one, if rounding does not explain that; else 0.
    """

    verdict: Verdict
    ratio: float = 0.0
    error: float = 0.0
    eager: float = 0.0
    rounding: float = 0.0
    spread: float | None = None
    note: str = ""
    magnitude: float = 0.0
    flips: Flips | None = None
    decided: float | None = None
    follows: tuple[str, ...] = ()
    disputed: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether rounding explains the error."""
        return self.verdict in ("same", "rounding", "decision")

    def __str__(self) -> str:
        text = self._own_text()
        if self.decided is None:
            return text
        change = f"change it by {self.decided:.1e}" if math.isfinite(self.decided) else "change its shape"
        return f"{text}; other decisions in {', '.join(self.follows)} {change}"

    def _own_text(self) -> str:
        """Describe the verdict without the decisions before the value."""
        if self.verdict == "same":
            return "same"
        if self.flips is not None:
            text = f"{self.verdict}: {self.flips}"
            return f"{text}; {self.note}" if self.note else text
        if math.isinf(self.ratio):
            return f"{self.verdict}: {self.note}" if self.note else self.verdict
        far = f"absolute error {self.error:.1e} against float64, eager {self.eager:.1e}"
        text = f"{self.verdict}: {format_ratio(self.ratio)} times rounding ({far})"
        return f"{text}; {self.note}" if self.note else text


@dataclass(frozen=True)
class Float64Value:
    """A value computed in float64.

    Attributes:
        value: the float64 value.
        noisy: the same with every input of the computation changed by half a unit in the last place, up or down.
        unit: half a unit in the last place of the coarsest dtype that the noise has, relative.
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
    reference: torch.Tensor, truth: Float64Value, *, unit: float, length: int = 1, sequential: int = 1
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
        sequential: how many of them may be added sequentially; matrix products use blocked summation.
    """
    errors = _Errors(reference, reference, truth, unit, length, sequential)
    shape = complex_as_real(truth.value).shape
    return RoundingLevel(torch.cat([*map(errors.scale, errors.chunks())]).reshape(shape), *errors.level)


def rounding_verdict(
    actual: torch.Tensor,
    reference: torch.Tensor,
    truth: Float64Value,
    *,
    unit: float,
    reference_unit: float = 0.0,
    length: int = 1,
    sequential: int = 1,
    spread: torch.Tensor | None = None,
    is_step: bool = False,
) -> RoundingVerdict | None:
    """Judge a value by its error relative to float64 and its rounding level.

    Args:
        actual: the value to judge, which differs from the reference in this run or a further one.
        reference: the model's value, of the same shape.
        truth: the value in float64.
        unit: see `rounding_level`.
        reference_unit: the same of the path to the reference, if it is coarser.
        length: see `rounding_level`.
        sequential: see `rounding_level`.
        spread: the largest difference of each element between runs; None for a single run.
        is_step: whether the value is floating-point and constant but for jumps (see `Float64Values.steps`).

    Returns:
        The verdict, or None if rounding does not explain the model's own error (its float16 overflows, for example):
        float64 is then no reference.
    """
    if not actual.numel():
        return identical_verdict(spread)
    distance = largest_distance(spread)
    if not (actual.is_floating_point() or actual.is_complex()):
        differs = actual != reference
        is_certain = (truth.noisy == truth.value) & (reference == truth.value)
        return _decision_verdict(actual, reference, truth, differs=differs, is_certain=is_certain, distance=distance)
    if is_step:
        judge = partial(rounding_verdict, unit=unit, reference_unit=reference_unit, length=length, spread=spread)
        return _step_verdict(actual, reference, truth, distance, partial(judge, sequential=sequential))
    errors = _Errors(actual, reference, truth, unit, length, sequential, spread, reference_unit)
    if distance and math.isinf(distance):
        return RoundingVerdict("unstable", math.inf, math.inf, spread=distance, note="not finite in some runs alone")
    if errors.nonfinite_note:
        return RoundingVerdict("wrong", math.inf, math.inf, spread=distance, note=errors.nonfinite_note)
    if errors.lacks_float64 or errors.reference_is_unreliable:
        return None
    ratio, run_ratio = (
        max(error.largest / errors.level[0], error.typical / errors.level[1])
        for error in (errors.value_error, errors.run_difference)
    )
    ratio, note = max(ratio, errors.disputed_levels), ""
    if errors.disputed_levels:
        note = "float64 is nearer to this value than to the model's: are the weights those of the model?"
    elif math.isinf(ratio):
        note = "further off than a float64 can hold"
    verdict: Verdict = "rounding" if ratio <= SUSPICIOUS else "suspicious" if ratio <= WRONG else "wrong"
    # Unstable: runs differ by more than rounding, although the error does not; or by at least half of the error.
    if distance and (run_ratio > SUSPICIOUS if verdict == "rounding" else errors.largest_error <= 2 * distance):
        verdict, ratio = "unstable", max(ratio, run_ratio)
    return RoundingVerdict(
        verdict,
        ratio,
        error=errors.error,
        eager=errors.eager,
        rounding=errors.level[0] * errors.rounding,
        spread=distance,
        note=note,
        magnitude=errors.magnitude,
        disputed=errors.disputed_levels,
    )


class _Accumulator:
    """Accumulate the largest value and the root mean square of errors in units of `RoundingLevel.scale`."""

    def __init__(self) -> None:
        self.largest = self._squares = 0.0
        self._count = 0

    def add(self, units: torch.Tensor) -> bool:
        """Add errors and return whether they include a new maximum."""
        largest = float(units.amax())
        is_new = largest > self.largest
        self.largest = max(self.largest, largest)
        self._squares += float(torch.dot(units, units))
        self._count += units.numel()
        return is_new

    @property
    def typical(self) -> float:
        """The root mean square of the errors."""
        return math.sqrt(self._squares / self._count) if self._count else 0.0


class _Errors:
    """The errors of a value and its reference relative to float64, in units of each element's rounding error.

    Elements that are not finite have no error: where the value and the reference have the same NaN or infinity, there
    is nothing to measure; where they differ, the value is wrong.

    Attributes:
        value_error: the error of the value.
        reference_error: the error of the reference.
        noise_change: the change of the float64 value when its inputs change.
        run_difference: the difference of the value between runs.
        level: how many units rounding explains: of the worst element, and as root mean square.
        reference_is_unreliable: whether rounding does not explain the reference's own error.
        disputed_levels: by how many rounding levels of a coarse dtype the reference's error is larger than that of the
            value, if rounding does not explain that; else 0.
        lacks_float64: whether an element is finite, but not in float64.
        error: the absolute error of the element with the largest error in units.
        rounding: the unit of that element.
        magnitude: see `RoundingVerdict`.
        largest_error: the largest absolute error of the value.
        eager: the largest absolute error of the reference.
    """

    def __init__(  # noqa: PLR0917  called in two places
        self,
        actual: torch.Tensor,
        reference: torch.Tensor,
        truth: Float64Value,
        unit: float,
        length: int,
        sequential: int,
        spread: torch.Tensor | None = None,
        reference_unit: float = 0.0,
    ) -> None:
        self._coarsest_unit = max(unit, reference_unit)
        self._spread = None if spread is None else spread.reshape(-1)
        self._actual, self._reference, self._value, self._noisy = (
            complex_as_real(tensor.detach()).reshape(-1) for tensor in (actual, reference, truth.value, truth.noisy)
        )
        self._unit, self._noise_factor = unit, unit / truth.unit
        count = self._value.numel()
        sample = slice(None, None, max(1, count // _NOISE_SAMPLE))
        noise, sizes = (self._noisy[sample] - self._value[sample]).abs() * self._noise_factor, self._value[sample].abs()
        known = ~jumps(noise, unit * sizes)
        self._typical_noise = typical_size(noise[known], sizes[known], MASK_NOISE * unit)
        self._smallest_normal = SMALLEST_NORMAL.get(unit, 0.0)
        # The mean of a constant is that constant, but kernels add it up.
        self._is_exact = sequential == 1 and self._reference_is_exact()
        self.value_error, self.reference_error, self.noise_change, self.run_difference = (
            _Accumulator() for _ in range(4)
        )
        self.lacks_float64 = False
        self._nonfinite: Counter[str] = Counter()
        self.error = self.rounding = self.largest_error = self.eager = 0.0
        magnitudes = self._value[:: max(1, count // _MAGNITUDE_SAMPLE)].abs()
        self.magnitude = typical_size(magnitudes, magnitudes, 1.0)
        # A decay of 1e-30 beside one of 1, which is exact, would have no other rounding level than its own.
        self._least_noise = max(self._typical_noise, unit * unit * self.magnitude)
        for chunk in self.chunks():
            self._add(chunk)
        largest = typical = 1.0
        if not self._is_exact:  # rounding errors add up as the square root of their number
            growth, running = max(1.0, math.sqrt(length) / 4), math.sqrt(sequential)
            largest = max(growth * self.noise_change.largest, running, MIN_LARGEST)
            typical = max(growth * self.noise_change.typical, running / 4, MIN_TYPICAL)
        self.reference_is_unreliable = not self._explains_reference(largest, typical)
        further = (self.reference_error.typical - self.value_error.typical) * self._noise_factor / typical
        self.disputed_levels = further if truth.unit in _DTYPES and further > _DISPUTED else 0.0
        if not self._is_exact:
            largest, typical = max(self.reference_error.largest, largest), max(self.reference_error.typical, typical)
        self.level = largest, typical

    def _explains_reference(self, largest: float, typical: float) -> bool:
        """Return whether rounding explains the reference's own error.

        It does so in the model's dtypes, or if the error is no larger than that of the coarsest precision in which the
        model or the run may have computed (TF32, float16).
        """
        error, finer = self.reference_error, self._unit / self._coarsest_unit
        is_as_coarse = error.largest * finer <= SUSPICIOUS * largest and error.typical * finer <= SUSPICIOUS * typical
        return is_as_coarse or error.typical * self._noise_factor <= UNRELIABLE * typical

    @property
    def nonfinite_note(self) -> str:
        """Describe elements that are NaN or infinite in only one of value and reference, or differently infinite."""
        return "; ".join(text.format(count) for text, count in self._nonfinite.items() if count)

    def chunks(self) -> Iterator[slice]:
        """Return slices of elements that fit the processor's cache."""
        count = self._value.numel()
        return (slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK))

    def scale(self, chunk: slice) -> torch.Tensor:
        """Return `RoundingLevel.scale` of some elements."""
        return self._scale(chunk, None if self._is_exact else self._noise(chunk))

    def _scale(self, chunk: slice, noise: torch.Tensor | None) -> torch.Tensor:
        """Return the error of each element that half a unit explains; `noise` is None of an exact operation."""
        own = self._own_unit(chunk)
        return own.add_(_TINY) if noise is None else own.add_(noise.clamp(min=self._least_noise + _TINY))

    def _own_unit(self, chunk: slice) -> torch.Tensor:
        """Return half a unit in the last place of each element itself."""
        size = _without_nonfinite(self._value[chunk].abs()).mul_(self._unit)
        return size.clamp_(min=SMALLEST_UNIT[self._unit]) if self._unit in SMALLEST_UNIT else size

    def _noise(self, chunk: slice) -> torch.Tensor:
        """Return the change of the float64 value when its inputs change."""
        change = (self._noisy[chunk] - self._value[chunk]).abs_()
        return _without_nonfinite(change if self._noise_factor == 1.0 else change.mul_(self._noise_factor))

    def _reference_is_exact(self) -> bool:
        """Return whether the reference equals the float64 value, and each number in it is one of the inputs."""
        for chunk in self.chunks():
            value = self._value[chunk]
            if not bool(((self._reference[chunk].double() == value) | ~value.isfinite()).all()):
                return False
            if not bool((self._noise(chunk) <= _MAX_COPIED * self._own_unit(chunk)).all()):
                return False
        return True

    def _add(self, chunk: slice) -> None:
        """Add the errors of a chunk, as multiples of its rounding, to the accumulators."""
        value = self._value[chunk]
        # float8 has no arithmetic of its own
        error, reference_error = (
            tensor[chunk].to(torch.float64, copy=True).sub_(value).abs_() for tensor in (self._actual, self._reference)
        )
        largest, eager = float(error.amax()), float(reference_error.amax())
        if not math.isfinite(largest + eager):  # by far the usual case is that it is
            actual, reference = (tensor[chunk].double() for tensor in (self._actual, self._reference))
            self._count_nonfinite(actual, reference, value)
            known = value.isfinite()
            error = torch.where(known & actual.isfinite(), error, 0.0)
            reference_error = torch.where(known & reference.isfinite(), reference_error, 0.0)
            largest, eager = float(error.amax()), float(reference_error.amax())
        self.largest_error, self.eager = max(self.largest_error, largest), max(self.eager, eager)
        noise = None if self._is_exact else self._noise(chunk)
        scale = self._scale(chunk, noise)
        per_unit = scale.reciprocal()
        if self._typical_noise < self._smallest_normal:
            for errors in (error, reference_error):
                errors.masked_fill_(errors < self._smallest_normal, 0.0)
        if self.value_error.add(error.mul_(per_unit)):
            index = int(error.argmax())
            self.rounding = float(scale[index])
            self.error = float(error[index]) * self.rounding
            self.magnitude = max(self.magnitude, abs(float(value[index])))
        self.reference_error.add(reference_error.mul_(per_unit))
        if self._spread is not None:
            self.run_difference.add(self._spread[chunk] * per_unit)
        if noise is not None:
            self.noise_change.add(noise.mul_(per_unit))

    def _count_nonfinite(self, actual: torch.Tensor, reference: torch.Tensor, value: torch.Tensor) -> None:
        """Count the elements of a chunk that are NaN or infinite in only one of the value and its reference."""
        differs = (actual != reference) & ~(actual.isnan() & reference.isnan())
        differs &= ~self._may_overflow(actual, reference, value)
        finite, expected_finite = actual.isfinite(), reference.isfinite()
        self._nonfinite["not finite in {} elements"] += int((differs & ~finite & expected_finite).sum())
        missing_infinity = "not infinite in {} elements, as it should be"  # a mask that is left out, for example
        self._nonfinite[missing_infinity] += int((differs & reference.isinf()).sum())
        self._nonfinite["a number in {} elements that should be NaN"] += int((differs & reference.isnan()).sum())
        self.lacks_float64 |= bool((differs & finite & expected_finite & ~value.isfinite()).any())

    def _may_overflow(self, actual: torch.Tensor, reference: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return where rounding decides between the largest finite number of a dtype and infinity; not of a copy.

        The dtype is that of the value, or the coarsest on the way to it: a float16 number may be cast to float32.
        """
        near_largest = torch.zeros_like(actual, dtype=torch.bool)
        if self._is_exact:
            return near_largest
        for dtype in {self._reference.dtype, _DTYPES.get(self._unit, self._reference.dtype)}:
            largest = torch.finfo(dtype).max
            near_largest |= (value.abs() - largest).abs() <= WRONG * self._unit * largest
        return near_largest & (actual * value > 0) & (reference * value > 0)


def shares_error(actual: torch.Tensor, reference: torch.Tensor, exact: Float64Value) -> bool:
    """Whether a value and its reference agree with each other, but not with float64: they may be wrong in common.

    The distance from float64 has to be many units of a typical number, and many times that of the two. It is a quick
    test, of few passes over the numbers; `rounding_verdict` says what rounding explains.
    """
    if not actual.shape == exact.value.shape == reference.shape or not actual.numel():
        return False
    own, other, truth = (complex_as_real(tensor.detach()) for tensor in (actual, reference, exact.value))
    if own.is_floating_point() != truth.is_floating_point():
        return False
    if not own.is_floating_point():
        return torch.equal(own, other) and not torch.equal(own.to(truth.dtype), truth)
    if own.dtype in _DTYPES.values():  # the reference of a node by itself is cast to its dtype
        largest = torch.finfo(own.dtype).max
        truth = torch.where(truth.isfinite(), truth.clamp(-largest, largest), truth)
    distance, unit = largest_difference(own, truth), max(exact.unit, unit_of(own.dtype))
    is_far = distance > UNRELIABLE * unit * math.sqrt(sum(map(_sum_of_squares, _chunks(truth))) / truth.numel())
    return is_far and largest_difference(own, other) * _IN_COMMON <= distance


def largest_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest absolute difference; infinite where only one is NaN or an infinity of this sign."""
    return max(itertools.starmap(_largest_of_chunk, zip(_chunks(first), _chunks(second), strict=True)))


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield some elements at a time, in float64."""
    return (chunk.double() for chunk in torch.split(tensor.reshape(-1), _CHUNK))


def _sum_of_squares(chunk: torch.Tensor) -> float:
    """Return the sum of the squares of the finite numbers."""
    squares = float(torch.dot(chunk, chunk))  # one pass, without a copy
    return squares if math.isfinite(squares) else float(chunk.square().nan_to_num_(0.0, 0.0).sum())


def _largest_of_chunk(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest distance of some numbers; see `largest_difference`."""
    distances = (first - second).abs_()
    if math.isfinite(largest := float(distances.amax())):
        return largest
    equal = (first == second) | (first.isnan() & second.isnan())
    return float(distances.nan_to_num_(math.inf, math.inf).masked_fill_(equal, 0.0).amax())


def identical_verdict(spread: torch.Tensor | None = None) -> RoundingVerdict:
    """Return the verdict of a value that is bitwise equal to the reference."""
    return RoundingVerdict("same", spread=largest_distance(spread))


def format_ratio(ratio: float) -> str:
    """Format a ratio with few digits: `3.1`, `45`, `2,310`, `1.2e+09`."""
    return f"{ratio:.1f}" if ratio < _FEW else f"{ratio:,.0f}" if ratio < _MANY else f"{ratio:.1e}"


def largest_distance(spread: torch.Tensor | None) -> float | None:
    """Return the largest difference of an element between runs; None for a single run."""
    return None if spread is None else float(spread.max()) if spread.numel() else 0.0


def _step_verdict(
    actual: torch.Tensor,
    reference: torch.Tensor,
    truth: Float64Value,
    distance: float | None,
    judge: Callable[..., RoundingVerdict | None],
) -> RoundingVerdict | None:
    """Judge numbers that are constant but for jumps: as decisions where they are on another side of one."""
    unit = max(truth.unit, unit_of(actual.dtype), unit_of(reference.dtype))
    value = decided(truth.value, reference, unit)
    verdict = judge(actual, reference, replace(truth, value=value, noisy=decided(truth.noisy, value, unit)))
    differs = differing(actual, reference, unit)
    if verdict is None or verdict.sound or math.isinf(verdict.error) or not bool(differs.any()):
        return verdict
    is_certain = differing(actual, truth.value, unit) & differing(actual, truth.noisy, unit)
    return _decision_verdict(actual, reference, truth, differs=differs, is_certain=is_certain, distance=distance)


def _decision_verdict(
    actual: torch.Tensor,
    reference: torch.Tensor,
    truth: Float64Value,
    *,
    differs: torch.Tensor,
    is_certain: torch.Tensor,
    distance: float | None,
) -> RoundingVerdict:
    """Judge decisions: a different one is wrong where it is certain, because rounding does not decide which it is."""
    count = int(differs.sum())
    if distance and not count:  # further runs had another one
        note = f"another one in further runs, by up to {distance:g}"
        return RoundingVerdict("unstable", math.inf, spread=distance, note=note)
    error = largest_difference(actual, truth.value)
    if not bool((differs & is_certain).any()):
        return RoundingVerdict("decision", 1.0, error, spread=distance, flips=Flips(count, actual.numel()))
    instead = f"{actual[differs][0].item()} instead of {reference[differs][0].item()}"
    note = f"{instead} in {count} of {actual.numel()} elements"
    return RoundingVerdict("unstable" if distance else "wrong", math.inf, error, spread=distance, note=note)


def _without_nonfinite(sizes: torch.Tensor) -> torch.Tensor:
    """Replace numbers that are not finite by 0, in place."""
    return sizes if math.isfinite(float(sizes.sum())) else torch.nan_to_num_(sizes, 0.0, 0.0, 0.0)


def jumps(noise: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return where noise lets a step function jump, as one that rounds: the step's size says nothing of the others.

    Args:
        noise: the changes of some elements.
        own: the units of these elements.
    """
    large = noise > _JUMP * own
    if float((noise <= _STEADY * own)[own > 0].double().mean().nan_to_num(0.0)) < _MOST_STEADY:
        return torch.zeros_like(large)
    others = noise[~large]
    return large & (noise > _JUMP * (root_mean_square(others) if others.numel() else 0.0))


def typical_size(sizes: torch.Tensor, magnitudes: torch.Tensor, mask_size: float) -> float:
    """Return the root mean square of the nonzero sizes, without those of masks.

    Args:
        sizes: the sizes of some elements, or of their errors.
        magnitudes: the magnitudes of these elements.
        mask_size: the largest typical size of masks, relative to their magnitudes.
    """
    known = (sizes > 0) & sizes.isfinite()
    sample, magnitudes = sizes[known], magnitudes[known]
    if not sample.numel():
        return 0.0
    if float(magnitudes.max()) > _MASK:
        sample = _without_masks(sample, magnitudes, mask_size)
    return root_mean_square(sample)


def _without_masks(sizes: torch.Tensor, magnitudes: torch.Tensor, mask_size: float) -> torch.Tensor:
    """Return the sizes without those of masks, which would explain any error of the scores beside them.

    See `typical_size`. Masks are large numbers whose magnitudes differ by at most `_MASK_SPREAD` times and are far from
    the other ones. Data of different scales, as of several heads or channels in one tensor, spread over more, or have
    larger errors.
    """
    magnitudes, order = magnitudes.sort()
    above, below = magnitudes[1:], magnitudes[:-1]
    starts = ((above > _MASK) & (above > _MASK_GAP * below) & (magnitudes[-1] <= _MASK_SPREAD * above)).nonzero()
    if not starts.numel():
        return sizes
    start = 1 + int(starts[0])
    are_masks = root_mean_square(sizes[order[start:]] / magnitudes[start:]) <= mask_size
    return sizes[order[:start]] if are_masks else sizes


def root_mean_square(sizes: torch.Tensor) -> float:
    """Return the root mean square of float64 numbers."""
    largest = sizes.abs().max()  # squares may leave float64's range
    return 0.0 if not largest else float((sizes / largest).square().mean().sqrt() * largest)
