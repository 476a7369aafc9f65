"""Tables as data, for all writers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")
Cell = str | tuple[str, ...]  # one line, or several


@dataclass(frozen=True)
class Column:
    """The layout of a column on a terminal; files have the whole cells.

    Attributes:
        title: its heading.
        overflow: what happens to a cell that is wider than the column: `fold` continues it on the next line,
            `ellipsis` cuts it, `never` keeps the column as wide as its cells.
        width: the exact width in characters; None to fit the cells.
        least: the least width in characters.
        right: whether cells are aligned to the right.
        fill: whether the column takes the width that the others leave.
    """

    title: str
    overflow: Literal["fold", "ellipsis", "never"] = "fold"
    width: int | None = None
    least: int | None = None
    right: bool = False
    fill: bool = False


@dataclass(frozen=True)
class Table:
    """Columns and rows of text.

    Attributes:
        columns: from left to right.
        rows: one cell for each column.
        marked: the indices of the rows that need attention.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: frozenset[int] = frozenset()

    @property
    def titles(self) -> tuple[str, ...]:
        """The headings of the columns."""
        return tuple(column.title for column in self.columns)


Block = Table | str  # what a document is made of: tables and sentences


def table_of(
    columns: Mapping[str, Callable[[T], object]],
    rows: Iterable[T],
    *,
    marked: Callable[[T], bool] = lambda _: False,
) -> Table:
    """Return a table with a row for each item.

    Args:
        columns: by title, a function that returns the value of an item's cell: None is an empty cell, a float is
            written with two digits, the parts of a tuple are joined by plus signs.
        rows: the items.
        marked: a function that returns whether an item needs attention.
    """
    items: Sequence[T] = list(rows)
    return Table(
        tuple(map(Column, columns)),
        tuple(tuple(cell_text(get(item)) for get in columns.values()) for item in items),
        frozenset(index for index, item in enumerate(items) if marked(item)),
    )


def cell_text(value: object) -> str:
    """Return the text of a value in a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1e}"
    return " + ".join(map(str, value)) if isinstance(value, tuple) else str(value)
