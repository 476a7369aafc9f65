"""Find the nearest value to a tensor among many of its dtype and shape."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from heapq import merge

import torch

from ..common._complex import complex_as_real
from ._metrics import bytes_of, compare_tensors, flat
from ._tolerance import default_tolerance

_PARTS = 3  # terms of a mark
_SLACK = 1e-9  # the rounding error of a mark


class Nearest:
    """Some tensors of one dtype and shape, sorted by a mark: a number that hardly differs between close tensors.

    A tensor is only compared with those whose marks are near its own. Tensors with equal bytes count once.

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
        """Return the name of the value nearest to `tensor`, of the same dtype and shape; None if none is close."""
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
        """Yield the marks and names, the nearest mark first."""
        start = bisect_left(self._marks, (mark, ""))
        above = (self._marks[place] for place in range(start, len(self._marks)))
        below = (self._marks[place] for place in range(start - 1, -1, -1))
        return merge(above, below, key=lambda item: abs(item[0] - mark))


def _mark(tensor: torch.Tensor) -> float:
    """Return a number that changes by at most `3 d / (1 - d)` if each element `x` changes by at most `d (|x| + 1)`.

    `sign(x) log(|x| + 1)` changes by at most `d / (1 - d)`, and so do its maximum, its minimum and a weighted mean.
    Elements that are not finite count as 0, as they have the same positions in close tensors.
    """
    plain = _plain(tensor).nan_to_num(0.0, 0.0, 0.0)
    if not plain.numel():
        return 0.0
    size = plain.abs().log1p_().copysign_(plain)
    weights = torch.linspace(
        0.5, 1.0, size.numel(), dtype=torch.float64, device=size.device
    )  # so that the order counts
    return float(size.amax() + size.amin() + torch.dot(size, weights) / size.numel())


def _largest(tensor: torch.Tensor) -> float:
    plain = _plain(tensor).nan_to_num(0.0, 0.0, 0.0)
    return float(plain.abs().amax()) if plain.numel() else 0.0


def _hash(tensor: torch.Tensor) -> int:
    return hash(bytes_of(tensor).cpu().numpy().tobytes())


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return flat(complex_as_real(tensor)).double()
