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
        signal: the sum of the expected squares.
        noise: the sum of the squared differences.
    """

    worst: float
    where: int
    total: float
    absolute: float
    largest: float
    relative: float
    signal: float
    noise: float


def measure(expected: torch.Tensor, actual: torch.Tensor, beyond: float) -> Measured | None:
    """Measure a chunk; None if float32 can't hold what there is to measure: then float64 has to.

    The difference of two float32 numbers that are near to each other is exact in float32.

    Args:
        expected: `(n,)`.
        actual: `(n,)`, of the same dtype.
        beyond: the largest harmonic error so far.
    """
    if expected.dtype not in _FAST:
        return None
    e, a = expected.float(), actual.float()
    distance, size = torch.sub(a, e).abs_(), e.abs()
    sums = distance.amax(), size.amax(), e.square().sum(), distance.square().sum(), (distance / size).amax()
    size.add_(1)
    error = distance.div_(size)
    absolute, largest, signal, noise, relative, worst, total = torch.stack((*sums, error.amax(), error.sum())).tolist()
    if not (_LEAST < absolute < _MOST and largest < _MOST):  # NaN is neither
        return None
    if not math.isfinite(relative):  # something divides by zero
        relative = float((torch.sub(a, e).abs_() / e.abs()).nan_to_num_(nan=0.0, posinf=0.0).max())
    where = int(error.argmax()) if worst > beyond else -1
    return Measured(worst, where, total, absolute, largest, relative, signal, noise)
