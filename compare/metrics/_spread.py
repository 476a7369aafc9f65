"""Statistics and histograms of a value and its reference."""

import math
from dataclasses import dataclass

import torch

from filch.export import Histogram
from filch.steal import Statistics, statistics
from filch.steal.values._tensors import unexpand

_BINS = 32
_LARGE = 2**26  # bytes: a larger tensor is compacted, so that expanded dimensions are counted once
_CHUNK = 2**17  # elements at a time, so that the float64 copies stay in the processor's cache


@dataclass(frozen=True)
class Spread:
    """Statistics and a histogram of a value and its reference.

    Attributes:
        expected: the reference's statistics.
        actual: the value's statistics.
        histogram: the histogram of the finite numbers of both; None if there are none, or for complex numbers.
    """

    expected: Statistics
    actual: Statistics
    histogram: Histogram | None


def spread_of(actual: torch.Tensor, expected: torch.Tensor) -> Spread:
    """Return the spread of two tensors of any shapes and dtypes."""
    actual, expected = (unexpand(item) if item.nbytes > _LARGE else item for item in (actual, expected))
    both = statistics(expected, content=False), statistics(actual, content=False)
    ends = [end for item in both for end in (item.minimum, item.maximum) if end is not None and math.isfinite(end)]
    histogram = None
    if ends and not (expected.is_complex() or actual.is_complex()):
        low, high = min(ends), max(ends)
        histogram = Histogram(low, high, _counts(expected, low, high), _counts(actual, low, high))
    return Spread(*both, histogram)


def _counts(tensor: torch.Tensor, low: float, high: float) -> tuple[int, ...]:
    """Count the finite numbers in each of `_BINS` equally wide bins from `low` to `high`, the last one closed."""
    # `high - low` may overflow float64; a quarter of it can't.
    least, width = low / 4, (high / 4 - low / 4) / _BINS
    counts = torch.zeros(_BINS, dtype=torch.int64)
    for chunk in torch.split(tensor.detach().cpu().reshape(-1), _CHUNK):
        quarters = chunk.to(torch.float64).div_(4) if chunk.dtype != torch.float64 else chunk / 4
        if not math.isfinite(float(quarters.sum())):
            quarters = quarters[quarters.isfinite()]
        if width:
            # torch.histc takes four times as long.
            bins = quarters.sub_(least).div_(width).clamp_(0, _BINS - 1).to(torch.int32)
            counts += torch.bincount(bins, minlength=_BINS)
        else:
            counts[0] += quarters.numel()
    return tuple(counts.tolist())
