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
    is_whole, row = math.prod(shape) == math.prod(source), math.prod(source[1:])
    if layout.is_contiguous:
        return "same" if is_whole else _range_text(layout.offset, math.prod(shape), row if len(source) > 1 else 0)
    if len(source) == 2 and layout.strides == (1, row) and (text := _transposed_text(layout, shape, source)):
        return text
    if shape == source and (blocks := row_blocks(layout, source)) is not None:
        first = ", ".join(str(blocks.row(index)) for index in range(4))
        return f"heads permuted: rows {first}, … of {blocks.count} blocks of {blocks.size}"
    if len(source) == 2 and layout.sizes[1:] == source[1:] and layout.strides[1:] == (1,):  # whole rows
        step = layout.strides[0] // row
        return f"every {step}th row from {layout.offset // row}" if step else "repeated"
    if len(source) > 1 and layout.strides == (source[-1], 1):  # the same part of each row
        start = layout.offset % source[-1]
        return f"columns {start} to {start + layout.sizes[1] - 1}"
    return f"elements {layout}"


def _range_text(start: int, count: int, row: int) -> str:
    """Name consecutive elements: by rows, if they are whole rows of `row` elements; `row` is 0 if there are no rows."""
    if row and start % row == count % row == 0:
        return f"rows {start // row} to {(start + count) // row - 1}"
    return f"elements {start} to {start + count - 1}"


def _transposed_text(layout: Layout, shape: Shape, source: Shape) -> str:
    """Name a transposed matrix, or whole columns or whole rows of it; `""` if it is another part."""
    first_row, first_column = divmod(layout.offset, source[1])
    has_columns = first_row == 0 and layout.sizes[1] == source[0]
    has_rows = first_column == 0 and layout.sizes[0] == source[1]
    if has_columns and has_rows and len(shape) == 2:
        return "transposed"
    if has_columns:
        return f"columns {first_column} to {first_column + layout.sizes[0] - 1}, transposed"
    return f"rows {first_row} to {first_row + layout.sizes[1] - 1}, transposed" if has_rows else ""


@dataclass(frozen=True)
class RowBlocks:
    """Rows of a matrix, or elements of a vector, that are permuted in the same way in each block, as in heads.

    The rows of each block, written row by row into a table, are read column by column.

    Attributes:
        count: the number of blocks.
        size: the number of rows of a block.
        columns: the number of columns of the table: that of rows between neighbors in the new order.
    """

    count: int
    size: int
    columns: int

    def row(self, index: int) -> int:
        """Return the row of a block that is at an index in the new order."""
        table_rows = self.size // self.columns
        return index % table_rows * self.columns + index // table_rows


def row_blocks(layout: Layout, shape: Shape) -> RowBlocks | None:
    """Return how the rows of a tensor are permuted in blocks; None if they are arranged otherwise.

    Args:
        layout: the layout of a tensor in one of the same shape.
        shape: this shape.
    """
    width, digits = math.prod(shape[1:]), layout.digits
    if width > 1:  # rows stay whole
        if digits[-1:] != [(width, 1)]:
            return None
        digits = digits[:-1]
    rows = [(size, stride / width) for size, stride in digits]
    rows = [(1, shape[0]), *rows] if len(rows) == 2 else rows  # a single block
    if len(rows) != 3:
        return None
    (count, block), (columns, near), (table_rows, far) = rows
    is_transposed = near == 1 and far == columns and block == columns * table_rows and count * block == shape[0]
    return RowBlocks(count, int(block), int(far)) if is_transposed else None
