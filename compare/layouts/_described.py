"""Say in words how the elements of one tensor are arranged in another one."""

import math
from dataclasses import dataclass

from ._layout import Layout, Shape


def described(layout: Layout, shape: Shape, source: Shape) -> str:
    """Say how a tensor is arranged in another one.

    Args:
        layout: the layout.
        shape: the shape of the tensor.
        source: the shape of the other one.
    """
    count, total = math.prod(shape), math.prod(source)
    if layout.is_contiguous and count == total:
        return "same"
    row = math.prod(source[1:])
    if layout.is_contiguous and len(source) > 1 and layout.offset % row == 0 and count % row == 0:
        return f"rows {layout.offset // row} to {(layout.offset + count) // row - 1}"
    if layout.is_contiguous:
        return f"elements {layout.offset} to {layout.offset + count - 1}"
    if count == total and len(shape) == len(source) == 2 and layout == _transposed(source):
        return "transposed"
    if len(source) == 2 and layout.strides == (1, row) and (part := _transposed_part(layout, source)):
        return part
    if count == total and shape == source and (blocks := row_blocks(layout, source)) is not None:
        first = ", ".join(str(blocks.row(index)) for index in range(4))
        return f"heads permuted: rows {first}, … of {blocks.count} blocks of {blocks.size}"
    if len(source) == 2 and layout.sizes[1:] == source[1:] and layout.strides[1:] == (1,) and len(layout.sizes) == 2:
        step = layout.strides[0] // row
        return f"every {step}th row from {layout.offset // row}" if step else "repeated"
    if len(source) > 1 and layout.strides == (source[-1], 1):
        start = layout.offset % source[-1]
        return f"columns {start} to {start + layout.sizes[1] - 1}"
    return f"elements {layout}"


def _transposed_part(layout: Layout, source: Shape) -> str:
    first, start = divmod(layout.offset, source[1])
    if (first, layout.sizes[1]) == (0, source[0]):
        return f"columns {start} to {start + layout.sizes[0] - 1}, transposed"
    if (start, layout.sizes[0]) == (0, source[1]):
        return f"rows {first} to {first + layout.sizes[1] - 1}, transposed"
    return ""


@dataclass(frozen=True)
class RowBlocks:
    """Rows of a matrix, or elements of a vector, that are permuted in the same way in each block, as in heads.

    Attributes:
        count: the number of blocks.
        size: the number of rows of a block.
        columns: the number of rows between neighbors in the new order.
    """

    count: int
    size: int
    columns: int

    def row(self, index: int) -> int:
        """Return the row of a block that is at an index in the new order."""
        other = self.size // self.columns
        return index % other * self.columns + index // other


def row_blocks(layout: Layout, shape: Shape) -> RowBlocks | None:
    """Return how the rows of a tensor are permuted in blocks; None if they are arranged otherwise.

    Args:
        layout: the layout of a tensor in one of the same shape.
        shape: this shape.
    """
    width = math.prod(shape[1:])
    digits = [*zip(layout.sizes, layout.strides, strict=True)]
    if width > 1 and digits[-1:] != [(width, 1)]:
        return None
    rows = [(size, stride / width) for size, stride in (digits[:-1] if width > 1 else digits)]
    rows = rows if len(rows) == 3 else [(1, shape[0]), *rows]
    if len(rows) != 3:
        return None
    (count, block), (inner, near), (outer, far) = rows
    is_transposed = near == 1 and far == inner and block == inner * outer and count * block == shape[0]
    return RowBlocks(count, int(block), int(far)) if is_transposed else None


def _transposed(source: Shape) -> Layout:
    return Layout.of(0, [(source[1], 1), (source[0], source[1])])
