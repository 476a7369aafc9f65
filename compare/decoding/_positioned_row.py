"""The positions at which values are wrong: a `PositionedRow` of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from filch.export.backends import Stage

from ..float64._noise import unit_of
from ..float64._verdict import WRONG
from ..metrics._tolerance import default_tolerance
from ..results._rows import Row
from ._axes import Axes


@dataclass(frozen=True)
class PositionedRow:
    """A row of a value that was computed step by step.

    Attributes:
        row: the row.
        errors: for each position, the largest difference, relative to the root mean square of the value; masks have
            none.
        position: the first position at which it is wrong, or decides otherwise than the model; None if there is none.
        sequence: the first sequence in which it is or does; None if the value is the same for all.
        wrong: all positions at which it is or does, in order.
    """

    row: Row
    errors: tuple[float, ...]
    position: int | None = None
    sequence: int | None = None
    wrong: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, row: Row, value: torch.Tensor, reference: torch.Tensor, axes: Axes, positions: Sequence[int]
    ) -> "PositionedRow":
        """Return where a value differs from its reference.

        Args:
            row: its row.
            value: the value.
            reference: the reference, of the same shape.
            axes: the axes of both.
            positions: the position of each token along the axis of tokens; see `JoinedSteps`.
        """
        if torch.equal(value, reference):
            return cls(row, (0.0,) * axes.steps.length)
        is_float32 = value.dtype == reference.dtype == torch.float32  # near numbers have an exact difference
        dtype = torch.float32 if is_float32 and not row.diverged else torch.float64
        actual, expected = (_tokens_first(item.to(dtype), axes, len(positions)) for item in (value, reference))
        distances = _Distances.of(actual, expected, axes.uncomputed)
        by_position = [0.0] * axes.steps.length
        for position, error in zip(positions, distances.largest_by_token(), strict=True):
            by_position[position] = max(by_position[position], error)
        if not distances.has_any or not (row.diverged or row.decides):  # it is close
            return cls(row, tuple(by_position))
        wrong = distances.above(_limit(row, value.dtype) * expected.abs().clamp(min=distances.typical))
        tokens = wrong.reshape(len(positions), -1).any(-1).nonzero()[:, 0].tolist()
        of_first = wrong[min(tokens, key=lambda token: positions[token])]
        # The axis of sequences is in front of that of tokens, which is not the first one then.
        has_rows = bool(axes.token_axis) and of_first.dim() > 0 and of_first.shape[0] == axes.steps.rows
        sequence = int(of_first.reshape(len(of_first), -1).any(-1).nonzero()[0]) if has_rows else None
        places = tuple(sorted({positions[token] for token in tokens}))
        return cls(row, tuple(by_position), places[0], sequence, places)

    @classmethod
    def of_other_shape(
        cls, row: Row, value: torch.Tensor, reference: torch.Tensor, axes: Axes, positions: Sequence[int]
    ) -> "PositionedRow":
        """Return where a value has another shape than its reference, such as a window of another size; see `of`."""
        position = positions[0]
        if axes.steps.in_rows and "keys" in axes.roles and value.dim() == reference.dim():
            axis = axes.roles.index("keys")
            position = min(value.shape[axis], reference.shape[axis], axes.steps.length - 1)  # they are equal before it
        errors = tuple(math.inf if index == position else 0.0 for index in range(axes.steps.length))
        return cls(row, errors, position, None, (position,))


@dataclass(frozen=True)
class PositionedRows:
    """Where the values of a run are wrong.

    Attributes:
        of_tokens: the axes of each value that the run returned, and the position of each of its tokens, by its name.
        rows: where each compared value is wrong, by stage, kind of row and name.
    """

    of_tokens: dict[str, tuple[Axes, Sequence[int]]] = field(default_factory=dict)
    rows: dict[tuple[Stage, str, str], PositionedRow] = field(default_factory=dict)

    def add(self, row: Row, value: torch.Tensor, reference: torch.Tensor) -> None:
        """Add where a value differs from its reference; see `CompareOptions.on_row`."""
        places = self.of_tokens.get(row.value)
        if places is not None and (value.numel() or value.shape != reference.shape):  # empty ones are equal
            has_shape = value.shape == reference.shape
            positioned = PositionedRow.of if has_shape else PositionedRow.of_other_shape
            self.rows[row.stage, row.kind, row.value] = positioned(row, value, reference, *places)


@dataclass(frozen=True)
class _Distances:
    """How far the numbers of a value are from those of its reference.

    Attributes:
        numbers: the absolute differences, the axis of tokens in front; 0 where both are masks, or the same infinity or
            NaN, and where no step computes a number.
        typical: the root mean square of the reference without masks.
        has_any: whether any number differs, also a mask: those of another dtype differ, but not in what they hide.
    """

    numbers: torch.Tensor
    typical: float
    has_any: bool

    @classmethod
    def of(cls, actual: torch.Tensor, expected: torch.Tensor, uncomputed: torch.Tensor | None) -> "_Distances":
        """Return the distances; see `Axes.uncomputed`."""
        numbers, size = (actual - expected).abs_(), expected
        if uncomputed is not None:
            numbers.masked_fill_(uncomputed, 0.0)
        low, high = expected.aminmax()
        is_ordinary = bool(-_MASKED < low <= high < _MASKED)  # few values have masks, infinite numbers or NaN
        if not is_ordinary:
            numbers[(actual == expected) | (actual.isnan() & expected.isnan())] = 0.0
        has_any = bool(numbers.any())
        if not is_ordinary:
            numbers.masked_fill_((actual.abs() >= _MASKED) & (expected.abs() >= _MASKED), 0.0)
            size = torch.where(expected.abs() < _MASKED, expected, 0.0)
        typical = float(torch.linalg.vector_norm(size)) / math.sqrt(size.numel())
        return cls(numbers.nan_to_num_(nan=math.inf), typical, has_any)

    def largest_by_token(self) -> list[float]:
        """Return the largest difference of each token, relative to the root mean square."""
        found: list[float] = self.numbers.reshape(len(self.numbers), -1).amax(-1).div(self.typical or 1.0).tolist()
        return found

    def above(self, limits: torch.Tensor) -> torch.Tensor:
        """Return which distances exceed their limits; if none does, the largest ones."""
        found = self.numbers > limits
        return found if bool(found.any()) else self.numbers == self.numbers.max()


def _tokens_first(value: torch.Tensor, axes: Axes, count: int) -> torch.Tensor:
    """Return the first `count` tokens of a value, with their axis in front; a value without tokens is that of one."""
    axis = axes.token_axis
    return value[None] if axis is None else axes.split(value).narrow(axis, 0, count).movedim(axis, 0)


def _limit(row: Row, dtype: torch.dtype) -> float:
    """Return the relative difference from which on a number of a wrong value is wrong."""
    if not dtype.is_floating_point:
        return 0.0
    verdict = row.float64
    if verdict is not None and 0 < verdict.magnitude < _MASKED and math.isfinite(verdict.rounding):
        return max(WRONG * verdict.rounding / verdict.magnitude, _UNITS * unit_of(dtype))
    return default_tolerance(dtype).harmonic


_UNITS = 64.0  # by which correct numbers may differ that are small beside others of the same value
_MASKED = 6e4  # masks are the lowest number of a dtype, which a lower precision replaces
