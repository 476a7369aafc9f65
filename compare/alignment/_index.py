"""`TensorIndex`: find the tensors that have all numbers of another one, in any order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from ._layout import RELATIVE, STATISTICS_KEY, Numbers

_MOST = 12  # tensors to return
_MIN_LENGTH = 3  # of fibers that tell tensors apart


@dataclass(frozen=True)
class _Pool:
    """All fibers of one length, in the order of their keys.

    Attributes:
        names: the names of the tensors.
        keys: a number for each fiber, computed from its statistics.
        statistics: those of each fiber.
        owners: the index in `names` of the tensor of each fiber.
        tolerances: the largest difference of equal statistics, by the index in `names`.
    """

    names: list[str]
    keys: torch.Tensor
    statistics: torch.Tensor
    owners: torch.Tensor
    tolerances: torch.Tensor


class TensorIndex:
    """Tensors, which are found by statistics of them and of their fibers.

    Args:
        tensors: by name.
        relative: the largest difference of equal numbers, relative to the root mean square of the tensor.
        own: the same for some of the tensors, where it is another one.
    """

    def __init__(
        self, tensors: Mapping[str, Numbers], relative: float = RELATIVE, own: Mapping[str, float] | None = None
    ) -> None:
        self._tensors = tensors
        self._relative = relative
        self._own = own or {}

    def _tolerance(self, name: str) -> float:
        return self._own.get(name, self._relative) * self._tensors[name].scale

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
        parts: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, numbers in self._tensors.items():
            shape = tuple(numbers.tensor.shape)
            for axis, length in enumerate(shape):
                if length >= _MIN_LENGTH:
                    fibers = numbers.fibers(shape, axis, self._tolerance(name))
                    parts.setdefault(length, []).append((name, fibers.statistics))
        return {length: self._pool(items) for length, items in parts.items()}

    def _pool(self, items: list[tuple[str, torch.Tensor]]) -> _Pool:
        statistics = torch.cat([item for _, item in items])
        owners = torch.cat([torch.full((len(item),), index) for index, (_, item) in enumerate(items)])
        keys, order = (statistics @ STATISTICS_KEY).sort()
        tolerances = [self._tolerance(name) for name, _ in items]
        names = [name for name, _ in items]
        return _Pool(names, keys, statistics[order], owners[order], torch.tensor(tolerances, dtype=torch.float64))

    def equal_sized(self, numbers: Numbers, relative: float = 0.0) -> list[str]:
        """Return the tensors that have as many numbers with the same statistics.

        Args:
            numbers: of the tensor to look for.
            relative: its own largest difference, if that is larger than those of the tensors of the index.
        """
        if numbers.tensor.numel() not in self._by_size:
            return []
        names, statistics = self._by_size[numbers.tensor.numel()]
        allowed = [4 * max(self._own.get(name, self._relative), relative) * max(numbers.scale, 1e-30) for name in names]
        close = (statistics - numbers.statistics).abs() <= torch.tensor(allowed, dtype=torch.float64)[:, None]
        return [names[int(index)] for index in close.all(-1).nonzero()[:, 0]]

    def holders(self, numbers: Numbers, relative: float = 0.0) -> list[str]:
        """Return the tensors that have the first, the middle and the last fiber of a tensor.

        Args:
            numbers: of the tensor to look for.
            relative: its own largest difference, if that is larger than those of the tensors of the index.
        """
        shape = tuple(numbers.tensor.shape)
        found: dict[str, None] = {}
        for axis in sorted(range(len(shape)), key=lambda axis: -shape[axis]):
            if shape[axis] >= _MIN_LENGTH and shape[axis] in self._pools:
                statistics = numbers.fibers(shape, axis, max(self._relative, relative) * numbers.scale).statistics
                places = sorted({0, len(statistics) // 2, len(statistics) - 1})
                owners = [{*self._owners(shape[axis], statistics[place], relative * numbers.scale)} for place in places]
                found |= dict.fromkeys(name for name in owners[0] if all(name in group for group in owners))
            if any(self._tensors[name].tensor.numel() > numbers.tensor.numel() for name in found):
                break  # other dimensions find the same ones
        return sorted(found)[:_MOST]

    def _owners(self, length: int, statistics: torch.Tensor, tolerance: float) -> Iterator[str]:
        """Yield the tensors that have a fiber with these statistics."""
        pool = self._pools[length]
        tolerances = pool.tolerances.clamp(min=tolerance)
        key, reach = float(statistics @ STATISTICS_KEY), 4 * float(tolerances.max())
        low, high = torch.searchsorted(pool.keys, torch.tensor([key - reach, key + reach], dtype=torch.float64))
        window = slice(int(low), int(high) + 1)
        close = (pool.statistics[window] - statistics).abs() <= tolerances[pool.owners[window]][:, None]
        for index in set(pool.owners[window][close.all(-1)].tolist()):
            yield pool.names[index]
