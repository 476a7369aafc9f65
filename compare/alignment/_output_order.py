"""Find in which order the numbers of a tensor are in an output of the other implementation, and compare them."""

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from ..layouts._closeness import RELATIVE
from ..layouts._layout import Layout, Shape
from ..layouts._numbers import TensorNumbers

_DIMENSIONS = 6  # of tensors whose dimensions may be exchanged
_BATCHED = 3  # dimensions of which others than the first are moved by conventions, as channels are


def output_orders(shape: Shape, other: Shape) -> Iterator[Layout]:
    """Yield the orders in which an output may have all numbers of a tensor: where its elements are in that tensor.

    An output of the same shape has the same order. One of another shape may have dimensions that are joined or split
    and, if there are three or more, in another order, as where channels are last. Those of an empty output are the same
    ones: no numbers would show how others were joined.

    Args:
        shape: of the tensor.
        other: of the output.
    """
    if math.prod(shape) != math.prod(other) or (0 in shape and sorted(_long(shape)) != sorted(_long(other))):
        return
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    digits = [digit for digit in zip(shape, strides, strict=True) if digit[0] != 1]
    may_move = _long(shape) != _long(other) and len(shape) >= _BATCHED and len(digits) <= _DIMENSIONS
    for order in itertools.permutations(digits) if may_move else [digits]:
        sizes = _ends([size for size, _ in order])
        if sizes <= _ends(other) or sizes >= _ends(other):
            yield Layout.of(0, order)


def _long(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _ends(sizes: Sequence[int]) -> set[int]:
    """Return the numbers of elements of the last dimensions, of one of them to all."""
    return {*itertools.accumulate(reversed(_long(tuple(sizes))), int.__mul__)}


def in_order(layout: Layout, tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor, of any size, in the order of an output: a vector."""
    return layout.select(tensor).reshape(-1) if tensor.numel() else tensor.reshape(-1)


def order_text(layout: Layout, shape: Shape, other: Shape) -> str:
    """Say in which order an output has the numbers of a tensor; `""` if it has the same shape."""
    if shape == other:
        return ""
    return f"{'' if layout.is_contiguous else 'in another order, '}{[*other]} for {[*shape]}"


def have_equal_numbers(actual: torch.Tensor, expected: torch.Tensor, relative: float = RELATIVE) -> bool:
    """Whether two tensors of one shape are equal: finite numbers but for rounding, others in their kind and sign."""
    if not (actual.is_floating_point() or expected.is_floating_point()):
        return bool((actual.long() == expected.long()).all())  # torch compares no uint16 with another dtype
    first, second = actual.double(), expected.double()
    if not have_same_kinds(first, second):
        return False
    finite = second.isfinite()
    sizes = TensorNumbers(torch.where(finite, second, 0.0)).closeness(relative).sizes(second)
    return bool((~finite | ((first - second).abs() <= relative * sizes)).all())


def have_same_kinds(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors of one shape are NaN, infinite, and of which sign, in the same places."""
    return torch.equal(_kinds(actual), _kinds(expected))


def _kinds(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=torch.int8)
    infinite = tensor.isinf()
    return torch.where(infinite, tensor.sign().to(torch.int8), tensor.isnan().to(torch.int8) * 2)
