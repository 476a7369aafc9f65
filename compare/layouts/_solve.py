"""Find how the elements of one tensor are arranged in another one: transposed, split, joined, interleaved or repeated.

The order is not guessed from a list: it is solved for. A fiber is the vector of elements along one dimension, and its
place is the flat index of its first element. `Fibers` are recognized by statistics that do not depend on the order of
their elements (mean, mean absolute value, root mean square), which gives the place of each fiber of a tensor in the
other one. `solve` writes the places as a mixed-radix number: sizes and strides, as in CuTe (see `Layout`). A layout
counts only if it holds for every element. `TensorIndex` finds the tensors, among many, for which that is worth trying.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch

from ._closeness import RELATIVE, Closeness
from ._layout import Digit, Layout, Shape
from ._numbers import TensorNumbers, order_free_statistics

_KEY = torch.tensor([1.0, 0.7, 0.9], dtype=torch.float64)  # combines statistics into one number
_CANDIDATES = 8  # places to try for one fiber
_SEARCHES = 64  # digits to try for one order
_ATTEMPTS = 12  # pairs of dimensions to try
_PARTS, _DIGITS = 8, 5  # of layouts that are tried one by one
_FIRST, _SAMPLE = 32, 4096  # elements to try first
_MAX_ELEMENTS = 2**16  # of tensors whose elements are looked up one by one
_MOST = 12  # tensors to return from an index
_MIN_LENGTH = 3  # of fibers that tell tensors apart
_PROBES = 3  # fibers to look for in an index


def _sizes_of(statistics: torch.Tensor) -> torch.Tensor:
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
        self.limits = closeness.limits(_sizes_of(self.statistics))
        self._key = _KEY[: statistics.shape[-1]]
        self._sorted, self._order = (self.statistics @ self._key).sort()

    def places(self, statistics: torch.Tensor) -> list[int]:
        """Return the flat indices where fibers with these statistics begin."""
        key = float(statistics @ self._key)
        reach = 2 * float(self._closeness.limits(_sizes_of(statistics))) * float(self._key.sum())
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
            elif bool(self._are_at(statistics, _indices_of(start, found)).all()):
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


def fibers_of(numbers: TensorNumbers, shape: Shape, axis: int, relative: float) -> Fibers:
    """Return the fibers along a dimension of a tensor in a shape, which are made once.

    Args:
        numbers: of the tensor.
        shape: any shape that it may have.
        axis: the dimension of this shape.
        relative: the largest difference; see `TensorNumbers.closeness`.
    """
    closeness = numbers.closeness(relative)
    key = shape, axis, closeness
    if key not in numbers.fibers:
        numbers.fibers[key] = Fibers(numbers.finite.reshape(shape), axis, closeness)
    found: Fibers = numbers.fibers[key]
    return found


@functools.lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    """Return the numbers that divide a positive number, in no order."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return (*small, *(number // size for size in small))


def _indices_of(start: int, digits: Sequence[Digit]) -> torch.Tensor:
    """Return the flat index for each value of the digits."""
    indices = torch.full((), start)
    for size, stride in digits:
        indices = indices[..., None] + torch.arange(size) * stride
    return indices.reshape(-1)


def holds(layout: Layout, numbers: TensorNumbers, source: TensorNumbers, relative: float = RELATIVE) -> bool:
    """Whether all numbers of a tensor are in their places in another one.

    Args:
        layout: the places.
        numbers: of a tensor of any shape with as many elements as the layout has.
        source: of the other tensor.
        relative: the largest difference; see `TensorNumbers.closeness`.
    """
    tensor, other = numbers.tensor, source.tensor
    if tensor.numel() != layout.numel or layout.last >= other.numel():
        return False
    return source.closeness(relative).holds(tensor.reshape(layout.sizes), layout.select(other))


def solve(numbers: TensorNumbers, source: TensorNumbers, relative: float = RELATIVE) -> Layout | None:
    """Return the layout of a tensor in another one; None if not all elements are there, or in no regular order.

    Args:
        numbers: of the tensor; each of them is looked for.
        source: of the other tensor, of any shape and number of elements.
        relative: the largest difference; see `TensorNumbers.closeness`.
    """
    shape, other = tuple(numbers.tensor.shape), tuple(source.tensor.shape)
    if not numbers.tensor.numel() or not source.tensor.numel():
        return None
    same = Layout.contiguous(numbers.tensor.numel())
    if math.prod(shape) == math.prod(other) and holds(same, numbers, source, relative):
        return same
    (least, largest), (low, high) = numbers.bounds, source.bounds
    slack = relative * max(-low, high, source.scale)
    if least < min(low, 0) - slack or largest > max(high, 0) + slack:  # 0 is in place of infinity
        return None
    if numbers.has_few:  # fibers can't be told apart
        return usual_layout(numbers, source, relative)
    pairs = [*_pairs_of_dimensions(shape, other)]
    if max(numbers.tensor.numel(), source.tensor.numel()) <= _MAX_ELEMENTS:
        pairs.append(((*shape, 1), len(shape), (*other, 1), len(other)))  # single elements as fibers
    for index, (own_shape, axis, source_shape, source_axis) in enumerate(pairs):
        if index == 1 and not _has_elements(numbers, source, relative):  # sorting takes less time than most attempts
            return None
        fibers = fibers_of(source, source_shape, source_axis, relative)
        found = _solve_along(numbers.finite.reshape(own_shape), axis, fibers)
        if found is not None and holds(found, numbers, source, relative):
            return found
    return None


def _has_elements(numbers: TensorNumbers, source: TensorNumbers, relative: float) -> bool:
    """Whether `source` has all elements of `numbers`, or of a sample of them, in any places."""
    flat = numbers.finite.reshape(-1).double()
    some = flat[:: max(len(flat) // _SAMPLE, 1)].contiguous()
    limits = 2 * source.closeness(relative).limits(some)
    ordered = source.finite.reshape(-1).double().sort().values
    first, last = torch.searchsorted(ordered, some - limits), torch.searchsorted(ordered, some + limits, right=True)
    return bool((last > first).all())


def usual_layout(numbers: TensorNumbers, source: TensorNumbers, relative: float) -> Layout | None:
    """Return the layout of a tensor in another one whose dimensions are permuted, or that of a part of the last one.

    Unlike `solve`, this needs no fibers that can be told apart.

    Args:
        numbers: see `solve`.
        source: see `solve`.
        relative: see `solve`.
    """
    count, total = numbers.tensor.numel(), source.tensor.numel()
    shape, other = tuple(numbers.tensor.shape), tuple(source.tensor.shape)
    parts = total // count if count and shape and other else 0
    if not 1 <= parts <= _PARTS or parts * count != total or other[-1] % parts:
        return None
    layouts, places = _usual_layouts(shape, other, parts)
    starts = source.finite.reshape(-1)[places]
    first = numbers.finite.reshape(-1)[: places.shape[1]]
    close = (starts - first).abs() <= source.closeness(relative).limits(starts)
    likely = (layouts[int(index)] for index in close.all(-1).nonzero()[:, 0])
    return next((layout for layout in likely if holds(layout, numbers, source, relative)), None)


@functools.lru_cache(maxsize=1024)
def _usual_layouts(shape: Shape, source: Shape, parts: int) -> tuple[list[Layout], torch.Tensor]:
    """Return the layouts that `_permuted` yields, each once, and the places of the first elements in each of them."""
    layouts = [*dict.fromkeys(_permuted(shape, source, parts))]
    elements = torch.arange(min(_FIRST, math.prod(shape)))
    places = [layout.places(elements) for layout in layouts]
    return layouts, torch.stack(places) if places else torch.zeros(0, len(elements), dtype=torch.long)


def _permuted(shape: Shape, source: Shape, parts: int) -> Iterator[Layout]:
    """Yield the layouts of each of the equal parts of a tensor along its last dimension, with dimensions permuted.

    Args:
        shape: of the tensor to look for; its last size may divide the last dimension of a part, as heads do.
        source: the shape of the tensor with the parts.
        parts: how many there are.
    """
    last = source[-1] // parts
    strides = [math.prod(source[axis + 1 :]) for axis in range(len(source))]
    whole = [*zip((*source[:-1], last), strides, strict=True)]
    inner = shape[-1]
    split = [*whole[:-1], (last // inner, inner), (inner, 1)] if last % inner == 0 else whole
    for part in range(parts):
        for digits in (whole, split):
            long = [digit for digit in digits if digit[0] > 1]
            for order in itertools.permutations(long) if len(long) <= _DIGITS else ():
                yield Layout.of(part * last, order)


def have_same_rows(numbers: TensorNumbers, other: TensorNumbers, relative: float = RELATIVE) -> bool:
    """Whether two tensors of equal size consist of the same fibers along their last dimension, in any order."""
    first, second = numbers.finite, other.finite
    if first.numel() != second.numel() or first.dim() < 2 or first.shape[-1:] != second.shape[-1:]:
        return False
    rows = [item.double().reshape(-1, item.shape[-1]) for item in (first, second)]
    keys = torch.linspace(1, 2, first.shape[-1], dtype=torch.float64)
    own, others = (item[(item @ keys).argsort()] for item in rows)
    return other.closeness(relative).holds(own, others)


def has_columns(numbers: TensorNumbers, source: TensorNumbers, relative: float = RELATIVE) -> bool:
    """Whether a matrix consists of columns of another one, whose rows are in any order."""
    shape, other = tuple(numbers.tensor.shape), tuple(source.tensor.shape)
    if len(shape) != 2 or len(other) != 2 or shape[0] != other[0] or min(shape) < 2:
        return False
    fibers = fibers_of(source, other, 0, relative)
    statistics = order_free_statistics(numbers.finite, 0)
    for start in fibers.places(statistics[0]):
        digits = fibers.digits(statistics, start)
        if digits is not None:
            columns = TensorNumbers(source.tensor[:, _indices_of(start, digits)])
            return have_same_rows(numbers, columns, relative)
    return False


def _pairs_of_dimensions(shape: Shape, source: Shape) -> Iterator[tuple[Shape, int, Shape, int]]:
    """Yield pairs of dimensions of equal size, the largest first: of both shapes, then of regrouped ones.

    Yields:
        the first shape or a regrouped one, the dimension, and likewise of the second shape.
    """
    found: dict[tuple[Shape, int, Shape, int], int] = {}  # the size of the dimensions
    for first, second in ((shape, source), *_regrouped(shape, source)):
        for (axis, size), (source_axis, other) in itertools.product(enumerate(first), enumerate(second)):
            if size == other and size > 1:
                found.setdefault((first, axis, second, source_axis), size)
        if len(found) >= _ATTEMPTS:
            break
    yield from sorted(found, key=lambda pair: -found[pair])[:_ATTEMPTS]


def _regrouped(shape: Shape, source: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Yield both shapes with one of them regrouped to fit the other."""
    yield from ((new, source) for new in _fitted(shape, source))
    yield from ((shape, new) for new in _fitted(source, shape))


def _fitted(shape: Shape, other: Shape) -> Iterator[Shape]:
    """Yield a shape with two neighboring dimensions joined, or one split in two, so that another shape has the size."""
    for index in range(len(shape) - 1):
        joined = shape[index] * shape[index + 1]
        if joined in other:
            yield *shape[:index], joined, *shape[index + 2 :]
    for index, size in enumerate(shape):
        for part in {*other}:
            if 1 < part < size and size % part == 0:
                for parts in ((size // part, part), (part, size // part)):
                    yield *shape[:index], *parts, *shape[index + 1 :]


def _solve_along(tensor: torch.Tensor, axis: int, fibers: Fibers) -> Layout | None:
    """Return a likely layout of a tensor, found by its fibers along a dimension; its elements are not checked.

    The digits of its index are those of the dimensions before `axis` (outer), of `axis` itself, and of those after it
    (inner).

    Args:
        tensor: the tensor to look for.
        axis: its dimension.
        fibers: those of the other tensor.
    """
    statistics = order_free_statistics(tensor, axis)
    before = math.prod(tensor.shape[:axis])
    statistics = statistics.reshape(before, -1, statistics.shape[-1])
    first_fiber = tensor.movedim(axis, -1).reshape(-1, tensor.shape[axis])[0]
    for start in fibers.places(statistics[0, 0]):
        inner = fibers.digits(statistics[0], start)
        outer = fibers.digits(statistics[:, 0], start) if inner is not None else None
        along = fibers.order(first_fiber, start) if outer is not None else None
        if inner is not None and outer is not None and along is not None:
            offset, digits = along
            return Layout.of(start + offset, [*outer, *digits, *inner])
    return None


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
                    fibers = fibers_of(numbers, shape, axis, self._relative_of(name))
                    by_length.setdefault(length, []).append((name, fibers))
        return {length: self._pool(items) for length, items in by_length.items()}

    def _pool(self, items: list[tuple[str, Fibers]]) -> _Pool:
        """Return the fibers of several tensors, which are all of one length, sorted by their keys."""
        statistics = torch.cat([fibers.statistics for _, fibers in items])
        limits = torch.cat([fibers.limits for _, fibers in items])
        owners = torch.cat([torch.full((len(fibers.limits),), index) for index, (_, fibers) in enumerate(items)])
        keys, order = (statistics @ _KEY).sort()
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
                fibers = fibers_of(numbers, shape, axis, max(self._pools[shape[axis]].relative, relative))
                places = _sizes_of(fibers.statistics).abs().topk(min(_PROBES, len(fibers.limits))).indices
                with_each = [{*self._with_fiber(shape[axis], fibers, int(place))} for place in places]
                found |= dict.fromkeys(set.intersection(*with_each))
            if any(self._tensors[name].tensor.numel() > numbers.tensor.numel() for name in found):
                break  # other dimensions find the same ones
        return sorted(found)[:_MOST]

    def _with_fiber(self, length: int, fibers: Fibers, place: int) -> Iterator[str]:
        """Yield the tensors that have a fiber with the statistics of that at an index among `fibers`."""
        pool, statistics, limit = self._pools[length], fibers.statistics[place], fibers.limits[place]
        key, reach = float(statistics @ _KEY), 4 * float(limit)
        low, high = torch.searchsorted(pool.keys, torch.tensor([key - reach, key + reach], dtype=torch.float64))
        window = slice(int(low), int(high) + 1)
        close = (pool.statistics[window] - statistics).abs() <= pool.limits[window, None].clamp(min=limit)
        for index in set(pool.owners[window][close.all(-1)].tolist()):
            yield pool.names[index]
