"""Find the nearest value to a tensor among many of its dtype and shape."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from heapq import merge

import torch

from ..common._complex import complex_as_real
from ._metrics import bytes_of, compare_tensors, flat
from ._tolerance import default_tolerance

_KEY_TERMS = 3  # numbers that are added to get a key
_KEY_ERROR = 1e-9  # by rounding


class Nearest:
    """Some tensors of one dtype and shape, sorted by a key: a number that hardly differs between close tensors.

    A tensor is only compared with those whose keys are near its own. Tensors with equal bytes count once.

    Args:
        values: the tensors, by name.
    """

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        self._values = values
        first: dict[tuple[float, int], str] = {}
        for name in sorted(values):
            content = hash(bytes_of(values[name]).cpu().numpy().tobytes())
            first.setdefault((_key(values[name]), content), name)
        self._keys = sorted((key, name) for (key, _), name in first.items())

    def find(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the value nearest to `tensor`, of the same dtype and shape; None if none is close."""
        if tensor.layout is not torch.strided:
            return None
        nearest, least_error = None, math.inf
        numbers = _finite_numbers(tensor)
        largest = float(numbers.abs().amax()) if numbers.numel() else 0.0
        key, limit = _key(tensor), default_tolerance(tensor.dtype).harmonic * (1 + largest)
        for other_key, name in self._sorted_from(key):
            distance = abs(other_key - key) / _KEY_TERMS
            if not least_error or distance / (1 + distance) > min(least_error, limit) + _KEY_ERROR:
                break
            difference = compare_tensors(self._values[name], tensor)
            if difference.close and difference.error < least_error:
                nearest, least_error = name, difference.error
        return nearest

    def _sorted_from(self, key: float) -> Iterator[tuple[float, str]]:
        """Yield the keys and names, the nearest key first."""
        start = bisect_left(self._keys, (key, ""))
        above = (self._keys[index] for index in range(start, len(self._keys)))
        below = (self._keys[index] for index in range(start - 1, -1, -1))
        return merge(above, below, key=lambda item: abs(item[0] - key))


def _key(tensor: torch.Tensor) -> float:
    """Return a number that changes by at most `3 d / (1 - d)` if each element `x` changes by at most `d (|x| + 1)`.

    `sign(x) log(|x| + 1)` changes by at most `d / (1 - d)`, and so do its maximum, its minimum and a weighted mean.
    Elements that are not finite count as 0, as they have the same positions in close tensors.
    """
    numbers = _finite_numbers(tensor)
    if not numbers.numel():
        return 0.0
    logs = numbers.abs().log1p_().copysign_(numbers)
    weights = torch.linspace(0.5, 1.0, logs.numel(), out=torch.empty_like(logs))  # so that the order counts
    return float(logs.amax() + logs.amin() + torch.dot(logs, weights) / logs.numel())


def _finite_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in float64 and one dimension, with 0 for those that are not finite."""
    return flat(complex_as_real(tensor)).double().nan_to_num(0.0, 0.0, 0.0)
