"""`PositionedRow`: the positions at which a value is wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

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
            return cls(row, (0.0,) * axes.spans.length)
        is_float32 = value.dtype == reference.dtype == torch.float32  # near numbers have an exact difference
        dtype = torch.float32 if is_float32 and not row.diverged else torch.float64
        differs = row.diverged or row.decides
        actual, expected = (axes.split(item).to(dtype) for item in (value, reference))
        axis = axes.key_axis if axes.query_axis is None else axes.query_axis
        if axis is None:
            actual, expected, axis = actual[None], expected[None], 0
        actual, expected = (item.narrow(axis, 0, len(positions)).movedim(axis, 0) for item in (actual, expected))
        distance = (actual - expected).abs_()
        if (uncomputed := axes.uncomputed) is not None:
            distance.masked_fill_(uncomputed, 0.0)
        low, high = expected.aminmax()
        shown, size = distance, expected
        if not -_MASKED < low <= high < _MASKED:  # few values have masks, infinite numbers or NaN
            distance[(actual == expected) | (actual.isnan() & expected.isnan())] = 0.0
            shown = distance.masked_fill((actual.abs() >= _MASKED) & (expected.abs() >= _MASKED), 0.0)
            size = torch.where(expected.abs() < _MASKED, expected, 0.0)
        typical = float(torch.linalg.vector_norm(size)) / math.sqrt(size.numel())
        largest = shown.amax([*range(1, shown.dim())]) if shown.dim() > 1 else shown
        errors = largest.nan_to_num(nan=math.inf).div(typical or 1.0)
        by_position = [0.0] * axes.spans.length
        for position, error in zip(positions, errors.tolist(), strict=True):
            by_position[position] = max(by_position[position], error)
        if not differs or not bool(distance.any()):
            return cls(row, tuple(by_position))
        distance = shown  # masks of another dtype differ, but not in what they hide
        distance.nan_to_num_(nan=math.inf)
        wrong = distance > _limit(row, value.dtype) * expected.abs().clamp(min=typical)
        if not bool(wrong.any()):
            wrong = distance == distance.max()
        tokens = wrong.reshape(len(positions), -1).any(-1).nonzero()[:, 0].tolist()
        first = min(tokens, key=lambda token: positions[token])
        rows = wrong[first]
        has_rows = rows.dim() > 0 and rows.shape[0] == axes.spans.rows and axis > 0
        sequence = int(rows.reshape(len(rows), -1).any(-1).nonzero()[0]) if has_rows else None
        places = tuple(sorted({positions[token] for token in tokens}))
        return cls(row, tuple(by_position), places[0], sequence, places)

    @classmethod
    def of_other_shape(
        cls, row: Row, value: torch.Tensor, reference: torch.Tensor, axes: Axes, positions: Sequence[int]
    ) -> "PositionedRow":
        """Return where a value has another shape than its reference, such as a window of another size; see `of`."""
        position = positions[0]
        if axes.spans.in_rows and "keys" in axes.roles and value.dim() == reference.dim():
            axis = axes.roles.index("keys")
            position = min(value.shape[axis], reference.shape[axis], axes.spans.length - 1)  # they are equal before it
        errors = tuple(math.inf if index == position else 0.0 for index in range(axes.spans.length))
        return cls(row, errors, position, None, (position,))


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
