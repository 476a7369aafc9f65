"""Measure the difference of chunks of ordinary floating-point numbers in float32, at memory speed."""

import math
from typing import NamedTuple

import torch

_LEAST, _MOST = 1e-15, 1e15  # beyond these, squares overflow or underflow in float32
_FAST = frozenset({torch.float32, torch.float16, torch.bfloat16})


class Measured(NamedTuple):
    """The measures of one chunk; see `Difference` for the terms.

    Attributes:
        worst: the largest harmonic error.
        where: its index in the chunk; -1 if it is not over `beyond`.
        total: the sum of the harmonic errors.
        absolute: the largest absolute difference.
        largest: the largest expected magnitude.
        relative: the largest relative difference.
        signal: the root of the sum of the expected squares.
        noise: the root of the sum of the squared differences.
    """

    worst: float
    where: int
    total: float
    absolute: float
    largest: float
    relative: float
    signal: float
    noise: float


def room(count: int, device: torch.device) -> torch.Tensor:
    """Return scratch memory for chunks of up to `count` elements; allocating it anew costs more than the arithmetic."""
    return torch.empty(3, count, device=device)


def measure(expected: torch.Tensor, actual: torch.Tensor, beyond: float, within: torch.Tensor) -> Measured | None:
    """Measure a chunk; return None if it needs float64, as float32 can't represent its measures.

    The difference of two float32 numbers that are near to each other is exact in float32.

    Args:
        expected: `(n,)`.
        actual: `(n,)`, of the same dtype.
        beyond: the largest harmonic error so far.
        within: scratch memory from `room`; it is overwritten.
    """
    if expected.dtype not in _FAST:
        return None
    e, a = expected.float(), actual.float()
    distance, size, quotient = within[:, : e.numel()]
    torch.sub(a, e, out=distance).abs_()
    torch.abs(e, out=size)
    sums = distance.amax(), size.amax(), torch.dot(size, size).sqrt(), torch.dot(distance, distance).sqrt()
    relatives = torch.div(distance, size, out=quotient).amax()
    error = torch.div(distance, size.add_(1), out=quotient)
    measures = torch.stack((*sums, relatives, error.amax(), error.sum())).tolist()
    absolute, largest, signal, noise, relative, worst, total = measures
    if not (_LEAST < absolute < _MOST and largest < _MOST):  # NaN is neither
        return None
    where = _where(error) if worst > beyond else -1
    if not math.isfinite(relative):  # division by zero
        relative = float(distance.div_(torch.abs(e, out=size)).nan_to_num_(nan=0.0, posinf=0.0).max())
    return Measured(worst, where, total, absolute, largest, relative, signal, noise)


def _where(error: torch.Tensor) -> int:
    """Return the index of the largest element; NumPy is ten times as fast as torch here."""
    return int(error.numpy().argmax() if error.device.type == "cpu" else error.argmax())
