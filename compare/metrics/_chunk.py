"""Measures a chunk of ordinary floating-point numbers in float32, at memory speed."""

import math
from typing import NamedTuple

import torch

_LEAST, _MOST = 1e-15, 1e15  # beyond, squares leave float32's range
_FAST = frozenset({torch.float32, torch.float16, torch.bfloat16})


class Measured(NamedTuple):
    """What one chunk adds up to; see `Difference` for the terms.

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
    """Memory to measure chunks of up to `count` elements in: new pages for each would cost more than the arithmetic."""
    return torch.empty(3, count, device=device)


def measure(expected: torch.Tensor, actual: torch.Tensor, beyond: float, within: torch.Tensor) -> Measured | None:
    """Measure a chunk; None if float32 can't hold what there is to measure: then float64 has to.

    The difference of two float32 numbers that are near to each other is exact in float32.

    Args:
        expected: `(n,)`.
        actual: `(n,)`, of the same dtype.
        beyond: the largest harmonic error so far.
        within: what `room` gave; it is overwritten.
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
    found = torch.stack((*sums, relatives, error.amax(), error.sum())).tolist()
    absolute, largest, signal, noise, relative, worst, total = found
    if not (_LEAST < absolute < _MOST and largest < _MOST):  # NaN is neither
        return None
    where = _where(error) if worst > beyond else -1
    if not math.isfinite(relative):  # something divides by zero
        relative = float(distance.div_(torch.abs(e, out=size)).nan_to_num_(nan=0.0, posinf=0.0).max())
    return Measured(worst, where, total, absolute, largest, relative, signal, noise)


def _where(error: torch.Tensor) -> int:
    """The index of the largest: NumPy finds it ten times as fast as torch."""
    return int(error.numpy().argmax() if error.device.type == "cpu" else error.argmax())
