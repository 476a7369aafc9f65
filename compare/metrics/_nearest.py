"""Find the nearest value to a tensor among many: those of its dtype and shape."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from heapq import merge

import torch

from ..common._complex import complex_as_real
from ._metrics import bytes_of, compare_tensors, flat
from ._tolerance import default_tolerance

Kind = tuple[torch.dtype, torch.Size, torch.layout]
_KEY_TERMS = 3  # numbers that are added to get a key
_KEY_ERROR = 1e-9  # by rounding


class Nearest:
    """Some tensors; those of one dtype and shape are sorted by a key, which hardly differs between close tensors.

    A tensor is only compared with those whose keys are near its own. Tensors with equal bytes count once.

    Args:
        values: the tensors, by name.
    """

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        self._values = values
        self._names: dict[Kind, list[str]] = {}
        for name, tensor in values.items():
            self._names.setdefault(_kind_of(tensor), []).append(name)
        self._keys = cache(self._sorted_keys)

    def find(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the value nearest to `tensor`, of the same dtype and shape; None if none is close."""
        keys = self._keys(_kind_of(tensor))
        if tensor.layout is not torch.strided or not keys:
            return None
        nearest, least_error = None, math.inf
        numbers = _finite_numbers(tensor)
        largest = float(numbers.abs().amax()) if numbers.numel() else 0.0
        key, limit = _key(tensor), default_tolerance(tensor.dtype).harmonic * (1 + largest)
        for other_key, name in _from_nearest(keys, key):
            distance = abs(other_key - key) / _KEY_TERMS
            least_possible = distance / (1 + distance)  # the harmonic error of tensors with these keys; see `_key`
            if not least_error or least_possible > min(least_error, limit) + _KEY_ERROR:
                break  # it is equal, or all that follow are further off or not close
            difference = compare_tensors(self._values[name], tensor)
            if difference.close and difference.error < least_error:
                nearest, least_error = name, difference.error
        return nearest

    def _sorted_keys(self, kind: Kind) -> list[tuple[float, str]]:
        """Return the keys of the tensors of a kind, with their names, in order."""
        first: dict[tuple[float, int], str] = {}
        for name in sorted(self._names.get(kind, ())):
            content = hash(bytes_of(self._values[name]).cpu().numpy().tobytes())
            first.setdefault((_key(self._values[name]), content), name)
        return sorted((key, name) for (key, _), name in first.items())


def _kind_of(tensor: torch.Tensor) -> Kind:
    """Return what tensors have in common that are compared."""
    return tensor.dtype, tensor.shape, tensor.layout


def _from_nearest(keys: Sequence[tuple[float, str]], key: float) -> Iterator[tuple[float, str]]:
    """Yield the keys and names, the nearest key first."""
    start = bisect_left(keys, (key, ""))
    above = (keys[index] for index in range(start, len(keys)))
    below = (keys[index] for index in range(start - 1, -1, -1))
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
