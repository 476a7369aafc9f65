"""What two tensors are like, side by side: their statistics and a histogram of both."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from filch.export import Histogram
from filch.steal import Statistics, statistics

_BINS = 32
_CHUNK = 2**20  # numbers at a time, so that the float64 copies stay small


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
    told = statistics(expected), statistics(actual)
    ends = [end for one in told for end in (one.minimum, one.maximum) if end is not None and math.isfinite(end)]
    histogram = None
    if ends and not (expected.is_complex() or actual.is_complex()):
        low, high = min(ends), max(ends)
        histogram = Histogram(low, high, _counts(expected, low, high), _counts(actual, low, high))
    return Spread(*told, histogram)


def _counts(tensor: torch.Tensor, low: float, high: float) -> tuple[int, ...]:
    """How many finite numbers are in each of `_BINS` equally wide bins from `low` to `high`, the last one closed."""
    # A float64's range may be wider than any float64: in quarters, the width of a bin never overflows.
    width = (high / 4 - low / 4) / _BINS
    counts = torch.zeros(_BINS, dtype=torch.int64)
    for chunk in _finite(tensor):
        if width:
            place = ((chunk / 4 - low / 4) / width).floor().clamp_(0, _BINS - 1).to(torch.int64)
            counts += torch.bincount(place, minlength=_BINS)
        else:
            counts[0] += chunk.numel()
    return tuple(counts.tolist())


def _finite(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    for chunk in torch.split(tensor.detach().cpu().reshape(-1), _CHUNK):
        wide = chunk.to(torch.float64)
        yield wide[wide.isfinite()]
