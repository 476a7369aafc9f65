"""The value that is nearest to a tensor, among many."""

import heapq
from bisect import bisect_left
from collections.abc import Mapping

import torch

from ._metrics import compare_tensors, typical_magnitude
from ._pairs import in_pairs
from ._tolerance import default_tolerance

_MOST = 100  # values are looked at
_PARTS = 3  # of what a value is marked with
_SLACK = 1e-12  # what marks are rounded by


class Nearest:
    """Some values of one type and shape, in the order of a number that hardly differs between two that are close.

    So not all of them have to be compared.

    Args:
        values: by name.
    """

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        self._values = values
        names: dict[float, str] = {}
        for name, tensor in values.items():
            names.setdefault(_mark(tensor), name)  # the first of those that are the same
        self._marks = sorted(names.items())

    def find(self, tensor: torch.Tensor) -> str | None:
        """The name of the value that is nearest to a tensor of their type and shape; None if none is close to it."""
        if tensor.layout is not torch.strided:
            return None
        mark = _mark(tensor)
        start = bisect_left(self._marks, (mark, ""))
        above = (self._marks[place] for place in range(start, min(start + _MOST, len(self._marks))))
        below = (self._marks[place] for place in range(start - 1, max(start - 1 - _MOST, -1), -1))
        best, nearest = default_tolerance(tensor.dtype).harmonic * (1 + typical_magnitude(tensor)), None
        for other, name in heapq.merge(above, below, key=lambda item: abs(item[0] - mark)):
            least = abs(other - mark) / _PARTS
            if least / (1 + least) > best + _SLACK:
                break
            difference = compare_tensors(tensor, self._values[name])
            if difference.close and (nearest is None or difference.error_max < best):
                best, nearest = difference.error_max, name
        return nearest


def _mark(tensor: torch.Tensor) -> float:
    """A number of a tensor: of one whose elements are at most `d (|x| + 1)` from its `x`, it is at most `3d/(1-d)` off.

    The sign of `x` times `log(|x| + 1)` changes by no more, and so do the largest, the least and a weighted mean of it.
    """
    plain = in_pairs(tensor.detach()).reshape(-1).double().nan_to_num(0.0, 0.0, 0.0)
    if not plain.numel():
        return 0.0
    size = plain.abs().log1p_().copysign_(plain)
    weights = torch.linspace(0.5, 1.0, size.numel(), dtype=torch.float64, device=size.device)  # its order counts, too
    return float(size.amax() + size.amin() + torch.dot(size, weights) / size.numel())
