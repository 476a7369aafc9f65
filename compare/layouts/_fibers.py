"""`Fibers`: find the places of fibers, which are the vectors of elements along one dimension of a tensor.

The place of a fiber is the flat index of its first element in the tensor. The places of several fibers in order are
regular if they are those of an index with a few digits, each of a size and a stride (see `Layout`).
"""

import functools
import math
from collections.abc import Sequence

import torch

from ._closeness import Closeness
from ._layout import Digit

STATISTICS_KEY = torch.tensor([1.0, 0.7, 0.9], dtype=torch.float64)  # combines statistics into one number
_CANDIDATES = 8  # places to try for one fiber
_SEARCHES = 64  # digits to try for one order


def order_free_statistics(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return statistics of each fiber along a dimension that do not depend on the order of its elements.

    Returns:
        float64 in the shape of the tensor without the dimension, and a last dimension of 3; of 1 for single elements.
    """
    if tensor.shape[axis] == 1:
        return tensor.select(axis, 0).double().unsqueeze(-1)
    numbers = tensor.to(torch.float64, copy=True)
    weights = torch.full((tensor.shape[axis],), 1 / tensor.shape[axis], dtype=torch.float64)

    def mean(items: torch.Tensor) -> torch.Tensor:  # a product with a vector is several times as fast as a reduction
        if axis == 0:
            return (weights @ items.reshape(len(weights), -1)).reshape(items.shape[1:])
        return items.movedim(axis, -1) @ weights

    average = mean(numbers)
    size = mean(numbers.abs_())
    return torch.stack([average, mean(numbers.square_()).sqrt_(), size], -1)


def sizes_of(statistics: torch.Tensor) -> torch.Tensor:
    """Return the root mean square of fibers, or their only elements, from their `order_free_statistics`."""
    return statistics[..., min(1, statistics.shape[-1] - 1)]


class Fibers:
    """The fibers of a tensor along a dimension, which are found by their statistics.

    Args:
        tensor: the tensor.
        axis: the dimension.
        closeness: how far equal numbers may differ; statistics, relative to the root mean square of the fiber.
    """

    def __init__(self, tensor: torch.Tensor, axis: int, closeness: Closeness) -> None:
        self._flat = tensor.contiguous().reshape(-1)
        self._length, self._after = tensor.shape[axis], math.prod(tensor.shape[axis + 1 :])
        statistics = order_free_statistics(tensor, axis)
        self.statistics = statistics.reshape(-1, statistics.shape[-1])
        self._closeness = closeness
        self.limits = closeness.limits(sizes_of(self.statistics))
        self._key = STATISTICS_KEY[: statistics.shape[-1]]
        self._sorted, self._order = (self.statistics @ self._key).sort()

    def places(self, statistics: torch.Tensor) -> list[int]:
        """Return the flat indices where fibers with these statistics begin."""
        key = float(statistics @ self._key)
        reach = 2 * float(self._closeness.limits(sizes_of(statistics))) * float(self._key.sum())
        bounds = torch.tensor([key - reach, key + reach], dtype=torch.float64)
        low, high = torch.searchsorted(self._sorted, bounds)
        order = self._order[int(low) : int(high) + 1]
        close = ((self.statistics[order] - statistics).abs() <= self.limits[order, None]).all(-1)
        places = order[close].sort().values[:_CANDIDATES]
        # The number of a fiber counts the indices before and after the dimension, a flat index also those in it.
        return (places // self._after * self._after * self._length + places % self._after).tolist()

    def _are_at(self, statistics: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Return whether a fiber with these statistics begins at each of these flat indices, as booleans."""
        block = self._after * self._length
        inside = (indices >= 0) & (indices < self._flat.numel())
        safe = torch.where(inside, indices, 0)
        begins = safe % block < self._after  # the index along the dimension is 0
        places = torch.where(begins, safe // block * self._after + safe % block, 0)
        return inside & begins & ((self.statistics[places] - statistics).abs() <= self.limits[places, None]).all(-1)

    def digits(self, statistics: torch.Tensor, start: int) -> list[Digit] | None:
        """Return the digits of the places of fibers, most significant first; None if their places are not regular.

        Digits are found from the least significant one; of several possible ones, the most likely is tried first.

        Args:
            statistics: of the fibers in order.
            start: the flat index where the first one begins.
        """
        pending: list[list[Digit]] = [[]]
        for _ in range(_SEARCHES):
            if not pending:
                return None
            found = pending.pop()
            unit = math.prod(size for size, _ in found)
            if unit < len(statistics):
                pending += ([digit, *found] for digit in self._next_digits(statistics, start, unit))
            elif bool(self._are_at(statistics, indices_of(start, found)).all()):
                return found
        return None

    def _next_digits(self, statistics: torch.Tensor, start: int, unit: int) -> list[Digit]:
        """Return the possible digits of the places, of which the next one counts; the most likely one is the last.

        The same fiber may be in several places, and so the first that fits may be wrong.

        Args:
            statistics: of the fibers in order.
            start: the flat index where the first one begins.
            unit: how many fibers the less significant digits, which are known, tell apart.
        """
        steps = torch.arange(len(statistics) // unit)
        found = []
        for place in self.places(statistics[unit]):
            if place >= start:
                matches = self._are_at(statistics[::unit], start + steps * (place - start))
                run = int(matches.long().cumprod(0).sum())
                size = max((size for size in _divisors(len(steps)) if size <= run), default=1)
                if size > 1:
                    found.append((size, place - start))
        return sorted(found, key=lambda digit: (digit[0], -digit[1]))

    def order(self, fiber: torch.Tensor, start: int) -> tuple[int, list[Digit]] | None:
        """Return the offset and the digits of the index inside of a fiber; None if its elements have no regular order.

        Args:
            fiber: the elements in order.
            start: the flat index where the fiber begins in the tensor.
        """
        own = self._flat[start:].as_strided((self._length,), (self._after,))
        if self._closeness.holds(fiber, own):
            return 0, [(self._length, self._after)]
        elements = Fibers(own.unsqueeze(-1), 1, self._closeness)
        for first in elements.places(fiber[:1].double()):
            digits = elements.digits(fiber[:, None].double(), first)
            if digits is not None:
                return first * self._after, [(size, stride * self._after) for size, stride in digits]
        return None


@functools.lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    """Return the numbers that divide a positive number, in no order."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return (*small, *(number // size for size in small))


def indices_of(start: int, digits: Sequence[Digit]) -> torch.Tensor:
    """Return the flat index for each value of the digits."""
    indices = torch.full((), start)
    for size, stride in digits:
        indices = indices[..., None] + torch.arange(size) * stride
    return indices.reshape(-1)
