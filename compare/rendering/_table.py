"""Tables as data, for all writers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal, TypeVar

T = TypeVar("T")
Cell = str | tuple[str, ...]  # one line, or several
Style = Literal["", "close", "different", "incomplete", "heading", "command"]


@dataclass(frozen=True)
class Line:
    """A sentence, or another line of text.

    Attributes:
        text: plain text; `""` is an empty line.
        style: what it says, which selects its color on a terminal. A `command` is not wrapped, so it can be copied.
    """

    text: str
    style: Style = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Column:
    """The layout of a column on a terminal; files have the whole cells.

    Attributes:
        title: its heading.
        fit: returns a cell that is wider than the column in a shorter form; it takes the cell and the column's width
            in characters. None keeps the cells whole, as those of numbers have to be.
        least: the least width in characters of a column with `fit`.
        right: whether cells are aligned to the right.
        fill: whether the column takes the width that the others leave.
        optional: columns with a positive number are left out if the table is too wide, the largest number first.
    """

    title: str
    fit: Callable[[Cell, int], Cell] | None = None
    least: int = 10
    right: bool = False
    fill: bool = False
    optional: int = 0


@dataclass(frozen=True)
class Table:
    """Columns and rows of text.

    Attributes:
        columns: from left to right.
        rows: one cell for each column.
        marked: the indices of the rows that need attention.
        wrong: row and column of single cells that need attention.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: frozenset[int] = frozenset()
    wrong: frozenset[tuple[int, int]] = frozenset()

    @property
    def titles(self) -> tuple[str, ...]:
        """The headings of the columns."""
        return tuple(column.title for column in self.columns)


Block = Table | Line | str  # what a document is made of: tables and sentences


def folded(cell: Cell, width: int) -> Cell:
    """Return a cell whose lines continue on the next line."""
    return tuple(part for line in _lines(cell) for part in wrap(line, width) or [""])


def cut(cell: Cell, width: int) -> Cell:
    """Return a cell whose lines end with an ellipsis if they are longer than `width`."""
    return tuple(line if len(line) <= width else f"{line[: width - 1]}…" for line in _lines(cell))


def _lines(cell: Cell) -> tuple[str, ...]:
    return (cell,) if isinstance(cell, str) else cell


def table_of(
    columns: Mapping[str, Callable[[T], object]],
    rows: Iterable[T],
    *,
    marked: Callable[[T], bool] = lambda _: False,
    skip_empty: bool = False,
) -> Table:
    """Return a table with a row for each item.

    Args:
        columns: by title, a function that returns the value of an item's cell: None is an empty cell, a float is
            written with two digits, the parts of a tuple are joined by plus signs. Columns of numbers stay whole on a
            terminal, text is folded.
        rows: the items.
        marked: a function that returns whether an item needs attention.
        skip_empty: whether columns without text are left out.
    """
    items: Sequence[T] = list(rows)
    if skip_empty:
        columns = {title: get for title, get in columns.items() if any(cell_text(get(item)) for item in items)}
    values = [[get(item) for item in items] for get in columns.values()]
    return Table(
        tuple(_column(title, column) for title, column in zip(columns, values, strict=True)),
        tuple(tuple(cell_text(column[index]) for column in values) for index in range(len(items))),
        frozenset(index for index, item in enumerate(items) if marked(item)),
    )


def _column(title: str, values: Iterable[object]) -> Column:
    is_text = any(isinstance(value, str | tuple) for value in values)
    return Column(title, folded) if is_text else Column(title, right=True)


def cell_text(value: object) -> str:
    """Return the text of a value in a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1e}"
    return " + ".join(map(str, value)) if isinstance(value, tuple) else str(value)
