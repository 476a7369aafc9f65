"""`Layout`: where the elements of a tensor are in another one: transposed, split, joined, interleaved or repeated."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from filch.steal.text._visible import short_line

_MOST_ELEMENTS = 2**48  # of a layout from a file
Shape = tuple[int, ...]
Digit = tuple[int, int]  # of an index: how many values the digit has, and how far apart two neighbors are


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
    def of(cls, offset: int, digits: Sequence[Digit]) -> "Layout":
        """Return the layout with the fewest digits: neighbors that count on evenly are joined into one."""
        merged: list[Digit] = []
        for size, stride in digits:
            if size == 1:
                continue
            if merged and merged[-1][1] == stride * size:
                merged[-1] = (merged[-1][0] * size, stride)
            else:
                merged.append((size, stride))
        return cls(offset, tuple(size for size, _ in merged), tuple(stride for _, stride in merged))

    @classmethod
    def contiguous(cls, count: int, offset: int = 0) -> "Layout":
        """Return the layout of consecutive elements in the same order."""
        return cls.of(offset, [(count, 1)])

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
    def digits(self) -> list[Digit]:
        """The size and the stride of each digit, most significant first."""
        return [*zip(self.sizes, self.strides, strict=True)]

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
        return Layout.of(self.offset, [digit for digit in self.digits if digit[1]])

    def select(self, source: torch.Tensor) -> torch.Tensor:
        """Return the elements as a view of the other tensor; its shape is `sizes`.

        Raises:
            IndexError: the layout reaches beyond the tensor.
        """
        flat = source.contiguous().reshape(-1)
        if not 0 <= self.offset <= self.last < max(flat.numel(), 1):
            raise IndexError(f"the layout {self} reaches beyond {flat.numel()} elements")
        return flat.as_strided(self.sizes, self.strides, flat.storage_offset() + self.offset)

    @property
    def last(self) -> int:
        """The largest flat index in the other tensor."""
        return self.offset + sum((size - 1) * stride for size, stride in self.digits)

    def places(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the flat indices in the other tensor of the elements with these flat indices."""
        places = torch.full_like(indices, self.offset)
        for size, stride in reversed(self.digits):
            places, indices = places + indices % size * stride, indices // size
        return places

    def __str__(self) -> str:
        return f"{self.offset}+" + "·".join(f"{size}:{stride}" for size, stride in self.digits)


def long_sizes(shape: Sequence[int]) -> Shape:
    """Return the sizes of the dimensions that have several indices."""
    return tuple(size for size in shape if size != 1)


def are_regrouped(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a reshape from one shape to the other one only joins dimensions, or only splits them."""
    ends, other_ends = _ends(shape), _ends(other)
    return ends <= other_ends or ends >= other_ends


def _ends(shape: Sequence[int]) -> set[int]:
    """Return the numbers of elements of the last dimensions, of one of them to all."""
    return {*itertools.accumulate(reversed(long_sizes(shape)), int.__mul__)}
