"""Find how the elements of one tensor are arranged in another one: transposed, split, joined, interleaved or repeated.

The order is not guessed from a list: it is solved for. A fiber is the vector of elements along one dimension. The
fibers of both tensors are recognized by statistics that do not depend on the order of their elements (mean, mean
absolute value, root mean square), which gives the place of each fiber in the other tensor. The places are then written
as a mixed-radix number: sizes and strides, as in CuTe. A layout counts only if it holds for every element.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from filch.steal.text import short_line

RELATIVE = 1e-6  # float64 runs of two implementations differ by less, float32 tables of angles included
_CANDIDATES = 8  # places to try for one fiber
_SEARCHES = 64  # digits to try for one order
_ATTEMPTS = 12  # pairs of dimensions to try
LARGEST = 1e30  # larger numbers stand for infinity in masks
STATISTICS_KEY = torch.tensor([1.0, 0.7, 0.9], dtype=torch.float64)  # combines statistics into one number
_MOST_ELEMENTS = 2**48  # of a layout from a file
_PARTS, _DIGITS = 8, 5  # of layouts that are tried one by one
_FIRST = 32  # elements to try first
_MAX_ELEMENTS = 2**16  # of tensors whose elements are looked up one by one
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor are in another one.

    The element with the flat index `i` is at `offset` plus the digits of `i`, times `strides`; the digits are those of
    the mixed-radix number with the radices `sizes`, most significant first.

    Attributes:
        offset: the flat index of the first element.
        sizes: the radices; their product is the number of elements.
        strides: the distance that each digit counts for; 0 repeats elements.
    """

    offset: int
    sizes: Shape
    strides: Shape

    @classmethod
    def of(cls, offset: int, digits: Sequence[tuple[int, int]]) -> "Layout":
        """Return the layout with the fewest digits."""
        merged: list[tuple[int, int]] = []
        for size, stride in digits:
            if size == 1:
                continue
            if merged and merged[-1][1] == stride * size:
                merged[-1] = (merged[-1][0] * size, stride)
            else:
                merged.append((size, stride))
        return cls(offset, tuple(size for size, _ in merged), tuple(stride for _, stride in merged))

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Return the layout that `str` writes.

        Raises:
            ValueError: the text has another form.
        """
        offset, _, rest = text.partition("+")
        pairs = [digit.split(":") for digit in rest.split("·")] if rest else []
        numbers = [int(offset), *(int(number) for pair in pairs for number in pair)]
        if any(len(pair) != 2 for pair in pairs) or any(number < 0 for number in numbers):
            raise ValueError(f"a layout is written as offset+size:stride·size:stride, not as {text!r}")
        if max(*numbers, math.prod(numbers[1::2])) > _MOST_ELEMENTS:
            raise ValueError(f"no tensor has as many elements as the layout {short_line(text)}")
        return cls(numbers[0], tuple(numbers[1::2]), tuple(numbers[2::2]))

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are next to each other, in the same order."""
        return self.strides in ((), (1,))

    @property
    def without_repeats(self) -> "Layout":
        """The layout of the same elements, each once."""
        return Layout.of(self.offset, [digit for digit in zip(self.sizes, self.strides, strict=True) if digit[1]])

    def select(self, source: torch.Tensor) -> torch.Tensor:
        """Return the elements as a view of the other tensor; its shape is `sizes`.

        Raises:
            IndexError: the layout reaches beyond the tensor.
        """
        flat = source.contiguous().reshape(-1)
        if not 0 <= self.offset <= self.last < max(flat.numel(), 1):
            raise IndexError(f"the layout {self} reaches beyond {flat.numel()} elements")
        return flat.as_strided(self.sizes, self.strides, self.offset)

    @property
    def last(self) -> int:
        """The largest flat index in the other tensor."""
        steps = zip(self.sizes, self.strides, strict=True)
        return self.offset + sum((size - 1) * stride for size, stride in steps)

    def holds(self, numbers: "Numbers", source: "Numbers", relative: float = RELATIVE) -> bool:
        """Whether all numbers of a tensor are in their places in another one.

        Args:
            numbers: of a tensor of any shape with as many elements as the layout has.
            source: of the other tensor.
            relative: the largest difference, relative to the root mean square of `source`.
        """
        tensor, other = numbers.tensor, source.tensor
        if tensor.numel() != self.numel or self.offset < 0 or self.last >= other.numel():
            return False
        return same_numbers(tensor.reshape(self.sizes), self.select(other), relative * source.scale)

    def __str__(self) -> str:
        digits = zip(self.sizes, self.strides, strict=True)
        return f"{self.offset}+" + "·".join(f"{size}:{stride}" for size, stride in digits)


class Numbers:
    """The numbers of a tensor, with what is computed from them when it is first needed.

    Args:
        tensor: real numbers of any shape; integers are converted to float64.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = (tensor if tensor.is_floating_point() else tensor.double()).detach().contiguous()
        self._fibers: dict[tuple[Shape, int, float], Fibers] = {}

    @cached_property
    def finite(self) -> torch.Tensor:
        """The tensor with 0 in place of numbers that are not finite or stand for infinity."""
        if not self.tensor.numel() or all(abs(float(bound)) < LARGEST for bound in self.tensor.aminmax()):
            return self.tensor
        return torch.where(self.tensor.abs() < LARGEST, self.tensor, torch.zeros((), dtype=self.tensor.dtype))

    @cached_property
    def scale(self) -> float:
        """The root mean square of the finite numbers that are not 0."""
        count = int(self.finite.count_nonzero())
        return float(torch.linalg.vector_norm(self.finite, dtype=torch.float64)) / math.sqrt(max(count, 1))

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest finite number."""
        low, high = self.finite.aminmax() if self.finite.numel() else (torch.zeros(()), torch.zeros(()))
        return float(low), float(high)

    @cached_property
    def statistics(self) -> torch.Tensor:
        """Statistics of all finite numbers, which do not depend on their order: float64 in the shape [3]."""
        return _statistics(self.finite.reshape(-1), 0)

    def fibers(self, shape: Shape, axis: int, tolerance: float) -> "Fibers":
        """Return the fibers along a dimension of the tensor in a shape."""
        key = shape, axis, tolerance
        if key not in self._fibers:
            self._fibers[key] = Fibers(self.finite.reshape(shape), axis, tolerance)
        return self._fibers[key]


def same_numbers(first: torch.Tensor, second: torch.Tensor, tolerance: float) -> bool:
    """Whether two tensors of one shape differ by at most `tolerance` in each element; both may be infinite."""
    if bool(((first - second).abs() <= tolerance).all()):
        return True
    infinite = (first.abs() >= LARGEST) & (second.abs() >= LARGEST) & (first.sign() == second.sign())
    return bool((((first - second).abs() <= tolerance) | (first == second) | infinite).all())


def solve(numbers: Numbers, source: Numbers, relative: float = RELATIVE) -> Layout | None:
    """Return the layout of a tensor in another one; None if not all elements are there, or in no regular order.

    Args:
        numbers: of the tensor; each of them is looked for.
        source: of the other tensor, of any shape and number of elements.
        relative: the largest difference, relative to the root mean square of `source`.
    """
    shape, other = tuple(numbers.tensor.shape), tuple(source.tensor.shape)
    if not numbers.tensor.numel() or not source.tensor.numel():
        return None
    tolerance = relative * source.scale
    same = Layout.of(0, [(numbers.tensor.numel(), 1)])
    if math.prod(shape) == math.prod(other) and same.holds(numbers, source, relative):
        return same
    (least, largest), (low, high) = numbers.bounds, source.bounds
    if least < min(low, 0) - tolerance or largest > max(high, 0) + tolerance:
        return None
    pairs = [*_pairs_of_dimensions(shape, other)]
    if max(numbers.tensor.numel(), source.tensor.numel()) <= _MAX_ELEMENTS:
        pairs.append(((*shape, 1), len(shape), (*other, 1), len(other)))
    for own_shape, axis, source_shape, source_axis in pairs:
        fibers = source.fibers(source_shape, source_axis, tolerance)
        found = _solve_along(numbers.finite.reshape(own_shape), axis, fibers)
        if found is not None and found.holds(numbers, source, relative):
            return found
    return None


def usual_layout(numbers: Numbers, source: Numbers, relative: float) -> Layout | None:
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
    close = (starts - numbers.finite.reshape(-1)[: places.shape[1]]).abs() <= relative * source.scale
    likely = (layouts[int(index)] for index in close.all(-1).nonzero()[:, 0])
    return next((layout for layout in likely if layout.holds(numbers, source, relative)), None)


@functools.lru_cache(maxsize=1024)
def _usual_layouts(shape: Shape, source: Shape, parts: int) -> tuple[list[Layout], torch.Tensor]:
    """Return layouts by the shapes, with the places of the first elements."""
    layouts = [*dict.fromkeys(_permuted(shape, source, parts))]
    elements = torch.arange(min(_FIRST, math.prod(shape)))
    places = []
    for layout in layouts:
        rest, place = elements, torch.full_like(elements, layout.offset)
        for size, stride in zip(reversed(layout.sizes), reversed(layout.strides), strict=True):
            place, rest = place + rest % size * stride, rest // size
        places.append(place)
    return layouts, torch.stack(places) if places else torch.zeros(0, len(elements), dtype=torch.long)


def _permuted(shape: Shape, source: Shape, parts: int) -> Iterator[Layout]:
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


def have_same_rows(numbers: Numbers, other: Numbers, relative: float = RELATIVE) -> bool:
    """Whether two tensors of equal size consist of the same fibers along their last dimension, in any order."""
    first, second = numbers.finite, other.finite
    if first.numel() != second.numel() or first.dim() < 2 or first.shape[-1:] != second.shape[-1:]:
        return False
    rows = [item.double().reshape(-1, item.shape[-1]) for item in (first, second)]
    keys = torch.linspace(1, 2, first.shape[-1], dtype=torch.float64)
    own, others = (item[(item @ keys).argsort()] for item in rows)
    return same_numbers(own, others, relative * other.scale)


def has_columns(numbers: Numbers, source: Numbers, relative: float = RELATIVE) -> bool:
    """Whether a matrix consists of columns of another one, whose rows are in any order."""
    shape, other = tuple(numbers.tensor.shape), tuple(source.tensor.shape)
    if len(shape) != 2 or len(other) != 2 or shape[0] != other[0] or min(shape) < 2:
        return False
    fibers = source.fibers(other, 0, relative * source.scale)
    statistics = _statistics(numbers.finite, 0)
    for start in fibers.places(statistics[0]):
        digits = fibers.digits(statistics, start)
        if digits is not None:
            columns = Numbers(source.tensor[:, _indices(start, digits)])
            return have_same_rows(numbers, columns, relative)
    return False


def _pairs_of_dimensions(shape: Shape, source: Shape) -> Iterator[tuple[Shape, int, Shape, int]]:
    """Yield pairs of dimensions of equal size, the largest first: of both shapes, then of regrouped ones."""
    found: dict[tuple[Shape, int, Shape, int], int] = {}
    for first, second in ((shape, source), *_regrouped(shape, source)):
        for axis, size in enumerate(first):
            for source_axis, other in enumerate(second):
                if size == other and size > 1:
                    found.setdefault((first, axis, second, source_axis), size)
        if len(found) >= _ATTEMPTS:
            break
    ordered = sorted(found, key=lambda pair: -found[pair])
    yield from ordered[:_ATTEMPTS]


def _regrouped(shape: Shape, source: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Yield pairs of shapes in which one has neighboring dimensions joined, or a dimension split, to fit the other."""
    for first, second, swapped in ((shape, source, False), (source, shape, True)):
        for index in range(len(first) - 1):
            joined = first[index] * first[index + 1]
            if joined in second:
                new = (*first[:index], joined, *first[index + 2 :])
                yield (second, new) if swapped else (new, second)
        for index, size in enumerate(first):
            for part in {*second}:
                if 1 < part < size and size % part == 0:
                    for parts in ((size // part, part), (part, size // part)):
                        new = (*first[:index], *parts, *first[index + 1 :])
                        yield (second, new) if swapped else (new, second)


def _statistics(tensor: torch.Tensor, axis: int) -> torch.Tensor:
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


def _solve_along(tensor: torch.Tensor, axis: int, fibers: "Fibers") -> Layout | None:
    """Return a likely layout of a tensor, found by its fibers along a dimension; its elements are not checked."""
    statistics = _statistics(tensor, axis)
    before = math.prod(tensor.shape[:axis])
    statistics = statistics.reshape(before, -1, statistics.shape[-1])
    for start in fibers.places(statistics[0, 0]):
        inner = fibers.digits(statistics[0], start)
        outer = fibers.digits(statistics[:, 0], start) if inner is not None else None
        if inner is None or outer is None:
            continue
        along = fibers.order(tensor.movedim(axis, -1).reshape(-1, tensor.shape[axis])[0], start)
        if along is not None:
            offset, digits = along
            return Layout.of(start + offset, [*outer, *digits, *inner])
    return None


class Fibers:
    """The fibers of a tensor along a dimension, which are found by their statistics.

    Args:
        tensor: the tensor.
        axis: the dimension.
        tolerance: the largest difference of statistics.
    """

    def __init__(self, tensor: torch.Tensor, axis: int, tolerance: float) -> None:
        self._flat = tensor.contiguous().reshape(-1)
        self._length, self._after = tensor.shape[axis], math.prod(tensor.shape[axis + 1 :])
        statistics = _statistics(tensor, axis)
        self.statistics = statistics.reshape(-1, statistics.shape[-1])
        self._tolerance = tolerance
        self._key = STATISTICS_KEY[: statistics.shape[-1]]
        self._sorted, self._order = (self.statistics @ self._key).sort()

    def places(self, statistics: torch.Tensor) -> list[int]:
        """Return the flat indices where fibers with these statistics begin."""
        key, reach = float(statistics @ self._key), self._tolerance * float(self._key.sum())
        bounds = torch.tensor([key - reach, key + reach], dtype=torch.float64)
        low, high = torch.searchsorted(self._sorted, bounds)
        order = self._order[int(low) : int(high) + 1]
        close = (self.statistics[order] - statistics).abs().le(self._tolerance).all(-1)
        return sorted(self._flat_index(int(place)) for place in order[close][:1024])[:_CANDIDATES]

    def _flat_index(self, place: int) -> int:
        return place // self._after * self._after * self._length + place % self._after

    def _are_at(self, statistics: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Whether fibers with these statistics begin at these flat indices."""
        block = self._after * self._length
        inside = (indices >= 0) & (indices < self._flat.numel())
        safe = torch.where(inside, indices, 0)
        begins = safe % block < self._after
        places = torch.where(begins, safe // block * self._after + safe % block, 0)
        return inside & begins & (self.statistics[places] - statistics).abs().le(self._tolerance).all(-1)

    def digits(self, statistics: torch.Tensor, start: int) -> list[tuple[int, int]] | None:
        """Return the digits of the index of fibers, most significant first; None if their places are not regular.

        Args:
            statistics: of the fibers in order.
            start: the flat index where the first one begins.
        """
        pending: list[list[tuple[int, int]]] = [[]]
        for _ in range(_SEARCHES):
            if not pending:
                return None
            found = pending.pop()
            unit = math.prod(size for size, _ in found)
            if unit < len(statistics):
                pending += ([digit, *found] for digit in self._next_digits(statistics, start, unit))
            elif bool(self._are_at(statistics, _indices(start, found)).all()):
                return found
        return None

    def _next_digits(self, statistics: torch.Tensor, start: int, unit: int) -> list[tuple[int, int]]:
        """Return the possible digits of which one counts for `unit`; the most likely one is the last.

        The same fiber may be in several places, and so the first that fits may be wrong.
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

    def order(self, fiber: torch.Tensor, start: int) -> tuple[int, list[tuple[int, int]]] | None:
        """Return the offset and the digits of the index inside of a fiber; None if its elements have no regular order.

        Args:
            fiber: the elements in order.
            start: the flat index where the fiber begins in the tensor.
        """
        own = self._flat.as_strided((self._length,), (self._after,), start)
        if same_numbers(fiber, own, self._tolerance):
            return 0, [(self._length, self._after)]
        elements = Fibers(own.unsqueeze(-1), 1, self._tolerance)
        for first in elements.places(fiber[:1].double()):
            digits = elements.digits(fiber[:, None].double(), first)
            if digits is not None:
                return first * self._after, [(size, stride * self._after) for size, stride in digits]
        return None


@functools.lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return (*small, *(number // size for size in small))


def _indices(start: int, digits: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the flat index for each value of the digits."""
    indices = torch.full((), start)
    for size, stride in digits:
        indices = indices[..., None] + torch.arange(size) * stride
    return indices.reshape(-1)
