"""Measure the difference of chunks of ordinary floating-point numbers in float32, at memory speed."""

import math
from typing import NamedTuple

import torch

_LEAST, _MOST = 1e-15, 1e15  # beyond these, squares overflow or underflow in float32
_FAST = frozenset({torch.float32, torch.float16, torch.bfloat16})


class ChunkMeasures(NamedTuple):
    """The measures of one chunk; see `Difference` for the terms.

    Attributes:
        worst: the largest harmonic error.
        worst_index: its index in the chunk; -1 if it is not larger than `max_so_far`.
        error_sum: the sum of the harmonic errors.
        absolute: the largest absolute difference.
        largest: the largest expected magnitude.
        relative: the largest relative difference.
        signal: the root of the sum of the expected squares.
        noise: the root of the sum of the squared differences.
    """

    worst: float
    worst_index: int
    error_sum: float
    absolute: float
    largest: float
    relative: float
    signal: float
    noise: float


def scratch_memory(count: int, device: torch.device) -> torch.Tensor:
    """Return scratch memory for chunks of up to `count` elements; allocating it anew costs more than the arithmetic."""
    return torch.empty(3, count, device=device)


def measure(
    actual: torch.Tensor, expected: torch.Tensor, max_so_far: float, scratch: torch.Tensor
) -> ChunkMeasures | None:
    """Measure a chunk; return None if it needs float64, as float32 can't represent its measures.

    The difference of two float32 numbers that are near to each other is exact in float32.

    Args:
        actual: `(n,)`.
        expected: `(n,)`, of the same dtype.
        max_so_far: the largest harmonic error of earlier chunks.
        scratch: see `scratch_memory`; it is overwritten.
    """
    if expected.dtype not in _FAST:
        return None
    a, e = actual.float(), expected.float()
    distance, magnitude, quotient = scratch[:, : e.numel()]
    torch.sub(a, e, out=distance).abs_()
    torch.abs(e, out=magnitude)
    norms = torch.dot(magnitude, magnitude).sqrt(), torch.dot(distance, distance).sqrt()
    measures = distance.amax(), magnitude.amax(), *norms, torch.div(distance, magnitude, out=quotient).amax()
    error = torch.div(distance, magnitude.add_(1), out=quotient)
    numbers = torch.stack((*measures, error.amax(), error.sum())).tolist()
    absolute, largest, signal, noise, relative, worst, error_sum = numbers
    if not (_LEAST < absolute < _MOST and largest < _MOST):  # NaN is neither; float64 measures equal chunks, too
        return None
    worst_index = -1
    if worst > max_so_far:  # NumPy is ten times as fast as torch here
        worst_index = int(error.numpy().argmax() if error.device.type == "cpu" else error.argmax())
    if not math.isfinite(relative):  # division by zero
        relative = float(distance.div_(torch.abs(e, out=magnitude)).nan_to_num_(nan=0.0, posinf=0.0).max())
    return ChunkMeasures(worst, worst_index, error_sum, absolute, largest, relative, signal, noise)
