"""`TensorIndex`: find the tensors that have all numbers of another one, in any order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch

from ._closeness import RELATIVE
from ._fibers import STATISTICS_KEY, Fibers, sizes_of
from ._numbers import TensorNumbers

_MOST = 12  # tensors to return
_MIN_LENGTH = 3  # of fibers that tell tensors apart
_PROBES = 3  # fibers to look for


@dataclass(frozen=True)
class _Pool:
    """All fibers of one length, in the order of their keys.

    Attributes:
        names: the names of the tensors.
        keys: a number for each fiber, computed from its statistics.
        statistics: those of each fiber.
        owners: the index in `names` of the tensor of each fiber.
        limits: the largest difference of equal statistics, of each fiber.
        relative: the largest difference of equal numbers; see `TensorNumbers.closeness`.
    """

    names: list[str]
    keys: torch.Tensor
    statistics: torch.Tensor
    owners: torch.Tensor
    limits: torch.Tensor
    relative: float


class TensorIndex:
    """Tensors, which are found by statistics of them and of their fibers.

    Args:
        tensors: by name.
        relative: the largest difference of equal numbers; see `TensorNumbers.closeness`.
        exceptions: the same for the tensors for which it is another one, by name.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorNumbers],
        relative: float = RELATIVE,
        exceptions: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._tensors = tensors
        self._relative = relative
        self._exceptions = exceptions

    def _relative_of(self, name: str) -> float:
        """Return the largest difference of equal numbers of a tensor, relative."""
        return self._exceptions.get(name, self._relative)

    @cached_property
    def _by_size(self) -> Mapping[int, tuple[list[str], torch.Tensor]]:
        """The names and statistics of the tensors, by their numbers of elements."""
        groups: dict[int, list[str]] = {}
        for name, numbers in self._tensors.items():
            groups.setdefault(numbers.tensor.numel(), []).append(name)
        return {
            size: (names, torch.stack([self._tensors[name].statistics for name in names]))
            for size, names in groups.items()
        }

    @cached_property
    def _pools(self) -> Mapping[int, _Pool]:
        """All fibers, by their length."""
        by_length: dict[int, list[tuple[str, Fibers]]] = {}  # the name of a tensor, and its fibers along a dimension
        for name, numbers in self._tensors.items():
            shape = tuple(numbers.tensor.shape)
            for axis, length in enumerate(shape):
                if length >= _MIN_LENGTH:
                    fibers = numbers.fibers(shape, axis, self._relative_of(name))
                    by_length.setdefault(length, []).append((name, fibers))
        return {length: self._pool(items) for length, items in by_length.items()}

    def _pool(self, items: list[tuple[str, Fibers]]) -> _Pool:
        """Return the fibers of several tensors, which are all of one length, sorted by their keys."""
        statistics = torch.cat([fibers.statistics for _, fibers in items])
        limits = torch.cat([fibers.limits for _, fibers in items])
        owners = torch.cat([torch.full((len(fibers.limits),), index) for index, (_, fibers) in enumerate(items)])
        keys, order = (statistics @ STATISTICS_KEY).sort()
        names = [name for name, _ in items]
        relative = max(map(self._relative_of, names))
        return _Pool(names, keys, statistics[order], owners[order], limits[order], relative)

    def equal_sized(self, numbers: TensorNumbers, relative: float = 0.0) -> list[str]:
        """Return the tensors that have as many numbers with the same statistics.

        Args:
            numbers: of the tensor to look for.
            relative: its own largest difference, if that is larger than those of the tensors of the index.
        """
        if numbers.tensor.numel() not in self._by_size:
            return []
        names, statistics = self._by_size[numbers.tensor.numel()]
        allowed = [4 * max(self._relative_of(name), relative) * max(numbers.scale, 1e-30) for name in names]
        close = (statistics - numbers.statistics).abs() <= torch.tensor(allowed, dtype=torch.float64)[:, None]
        return [names[int(index)] for index in close.all(-1).nonzero()[:, 0]]

    def holders(self, numbers: TensorNumbers, relative: float = 0.0) -> list[str]:
        """Return the tensors that may hold all numbers of a tensor: those that have its largest fibers.

        Small fibers may be equal in many tensors. Dimensions are tried from the longest one.

        Args:
            numbers: of the tensor to look for.
            relative: its own largest difference, if that is larger than those of the tensors of the index.
        """
        shape = tuple(numbers.tensor.shape) if numbers.tensor.numel() else ()
        found: dict[str, None] = {}
        for axis in sorted(range(len(shape)), key=lambda axis: -shape[axis]):
            if shape[axis] >= _MIN_LENGTH and shape[axis] in self._pools:
                fibers = numbers.fibers(shape, axis, max(self._pools[shape[axis]].relative, relative))
                places = sizes_of(fibers.statistics).abs().topk(min(_PROBES, len(fibers.limits))).indices
                with_each = [{*self._with_fiber(shape[axis], fibers, int(place))} for place in places]
                found |= dict.fromkeys(set.intersection(*with_each))
            if any(self._tensors[name].tensor.numel() > numbers.tensor.numel() for name in found):
                break  # other dimensions find the same ones
        return sorted(found)[:_MOST]

    def _with_fiber(self, length: int, fibers: Fibers, place: int) -> Iterator[str]:
        """Yield the tensors that have a fiber with the statistics of that at an index among `fibers`."""
        pool, statistics, limit = self._pools[length], fibers.statistics[place], fibers.limits[place]
        key, reach = float(statistics @ STATISTICS_KEY), 4 * float(limit)
        low, high = torch.searchsorted(pool.keys, torch.tensor([key - reach, key + reach], dtype=torch.float64))
        window = slice(int(low), int(high) + 1)
        close = (pool.statistics[window] - statistics).abs() <= pool.limits[window, None].clamp(min=limit)
        for index in set(pool.owners[window][close.all(-1)].tolist()):
            yield pool.names[index]
