"""The value that is nearest to a tensor, among many of its type and shape."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from heapq import merge

import torch

from ..common._complex import complex_as_real
from ._metrics import bytes_of, compare_tensors, flat
from ._tolerance import default_tolerance

_PARTS = 3  # what a mark is the sum of
_SLACK = 1e-9  # what rounding changes a mark by


class Nearest:
    """Some tensors of one dtype and shape, sorted by a number that hardly differs between two that are close.

    So a tensor is compared with those alone whose number is near its own. Tensors with the same bytes count once.

    Args:
        values: the tensors, by name.
    """

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        self._values = values
        first: dict[tuple[float, int], str] = {}
        for name in sorted(values):
            first.setdefault((_mark(values[name]), _hash(values[name])), name)
        self._marks = sorted((mark, name) for (mark, _), name in first.items())

    def find(self, tensor: torch.Tensor) -> str | None:
        """The name of the value with the least error, None if none is close; `tensor` has their dtype and shape."""
        if tensor.layout is not torch.strided:
            return None
        nearest, least = None, math.inf
        mark, most = _mark(tensor), default_tolerance(tensor.dtype).harmonic * (1 + _largest(tensor))
        for other, name in self._from(mark):
            apart = abs(other - mark) / _PARTS
            if not least or apart / (1 + apart) > min(least, most) + _SLACK:
                break
            difference = compare_tensors(tensor, self._values[name])
            if difference.close and difference.error_max < least:
                nearest, least = name, difference.error_max
        return nearest

    def _from(self, mark: float) -> Iterator[tuple[float, str]]:
        """The marks and names, the nearest mark first."""
        start = bisect_left(self._marks, (mark, ""))
        above = (self._marks[place] for place in range(start, len(self._marks)))
        below = (self._marks[place] for place in range(start - 1, -1, -1))
        return merge(above, below, key=lambda item: abs(item[0] - mark))


def _mark(tensor: torch.Tensor) -> float:
    """A number that is at most `3 d / (1 - d)` from that of a tensor whose elements `x` are at most `d (|x| + 1)` away.

    The sign of `x` times `log(|x| + 1)` changes by no more than `d / (1 - d)`, and so do the largest, the least and a
    weighted mean of these. Elements that are not finite count as 0, as they stand in the same places if two are close.
    """
    plain = _plain(tensor).nan_to_num(0.0, 0.0, 0.0)
    if not plain.numel():
        return 0.0
    size = plain.abs().log1p_().copysign_(plain)
    weights = torch.linspace(0.5, 1.0, size.numel(), dtype=torch.float64, device=size.device)  # its order counts, too
    return float(size.amax() + size.amin() + torch.dot(size, weights) / size.numel())


def _largest(tensor: torch.Tensor) -> float:
    plain = _plain(tensor).nan_to_num(0.0, 0.0, 0.0)
    return float(plain.abs().amax()) if plain.numel() else 0.0


def _hash(tensor: torch.Tensor) -> int:
    return hash(bytes_of(tensor).cpu().numpy().tobytes())


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return flat(complex_as_real(tensor)).double()
