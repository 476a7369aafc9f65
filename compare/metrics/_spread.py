"""What two tensors are like, side by side: their statistics and a histogram of both."""

import math
from dataclasses import dataclass

import torch

from filch.export import Histogram
from filch.steal import Statistics, compact, statistics

_BINS = 32
_LARGE = 2**26  # bytes: of a larger tensor, numbers that are repeated along whole dimensions are counted once
_CHUNK = 2**17  # numbers at a time, so that the float64 copies stay in the processor's cache


@dataclass(frozen=True)
class Spread:
    """What a value and its reference are like.

    Attributes:
        expected: the reference's statistics.
        actual: the value's.
        histogram: how the finite numbers of both are spread; None if there are none, or none that can be put in order.
    """

    expected: Statistics
    actual: Statistics
    histogram: Histogram | None


def spread_of(expected: torch.Tensor, actual: torch.Tensor) -> Spread:
    """What two tensors of any shapes and dtypes are like."""
    expected, actual = (compact(one) if one.nbytes > _LARGE else one for one in (expected, actual))
    told = statistics(expected, content=False), statistics(actual, content=False)
    ends = [end for one in told for end in (one.minimum, one.maximum) if end is not None and math.isfinite(end)]
    histogram = None
    if ends and not (expected.is_complex() or actual.is_complex()):
        low, high = min(ends), max(ends)
        histogram = Histogram(low, high, _counts(expected, low, high), _counts(actual, low, high))
    return Spread(*told, histogram)


def _counts(tensor: torch.Tensor, low: float, high: float) -> tuple[int, ...]:
    """How many finite numbers are in each of `_BINS` equally wide bins from `low` to `high`, the last one closed."""
    # A float64's range may be wider than any float64 is; a quarter of it never is.
    least, width = low / 4, (high / 4 - low / 4) / _BINS
    counts = torch.zeros(_BINS, dtype=torch.int64)
    for chunk in torch.split(tensor.detach().cpu().reshape(-1), _CHUNK):
        wide = chunk.to(torch.float64).div_(4) if chunk.dtype != torch.float64 else chunk / 4
        if not math.isfinite(float(wide.sum())):
            wide = wide[wide.isfinite()]
        if width:
            # torch.histc takes four times as long.
            counts += torch.bincount(wide.sub_(least).div_(width).clamp_(0, _BINS - 1).to(torch.int32), minlength=_BINS)
        else:
            counts[0] += wide.numel()
    return tuple(counts.tolist())
