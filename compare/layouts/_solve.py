"""Find how the elements of one tensor are arranged in another one: transposed, split, joined, interleaved or repeated.

The order is not guessed from a list: it is solved for. A fiber is the vector of elements along one dimension. The
fibers of both tensors are recognized by statistics that do not depend on the order of their elements (mean, mean
absolute value, root mean square), which gives the place of each fiber in the other tensor. The places are then written
as a mixed-radix number: sizes and strides, as in CuTe. A layout counts only if it holds for every element.
"""

import functools
import itertools
import math
from collections.abc import Iterator

import torch

from ._closeness import RELATIVE
from ._fibers import Fibers, indices_of, order_free_statistics
from ._layout import Layout, Shape
from ._numbers import TensorNumbers

_ATTEMPTS = 12  # pairs of dimensions to try
_PARTS, _DIGITS = 8, 5  # of layouts that are tried one by one
_FIRST, _SAMPLE = 32, 4096  # elements to try first
_MAX_ELEMENTS = 2**16  # of tensors whose elements are looked up one by one


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
        fibers = source.fibers(source_shape, source_axis, relative)
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
    fibers = source.fibers(other, 0, relative)
    statistics = order_free_statistics(numbers.finite, 0)
    for start in fibers.places(statistics[0]):
        digits = fibers.digits(statistics, start)
        if digits is not None:
            columns = TensorNumbers(source.tensor[:, indices_of(start, digits)])
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
