"""Tables as data, for all writers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from textwrap import wrap
from typing import Any, Literal, TypeVar

from ._names import shortened_names, shortened_paths, without_middle

T = TypeVar("T")
Cell = str | tuple[str, ...]  # one line, or several
Fit = Callable[[Sequence[Cell], int], Sequence[Cell]]
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
        fit: returns the cells in a form that fits; it takes all cells of the column and its width in characters.
            None keeps the cells whole, as those of numbers have to be.
        least: the least width in characters of a column with `fit`.
        preferred: the width in characters up to which a column with `fit` displaces optional columns.
        right: whether cells are aligned to the right.
        fill: whether the column takes the width that the others leave.
        optional: columns with a positive number are left out if the table is too wide, the largest number first; before
            them, columns whose cells are all empty.
    """

    title: str
    fit: Fit | None = None
    least: int = 10
    preferred: int = 10
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


def folded(cells: Sequence[Cell], width: int) -> Sequence[Cell]:
    """Return cells whose lines continue on the next line, between words."""
    return [tuple(part for line in lines_of(cell) for part in wrapped(line, width) or [""]) for cell in cells]


def cut(cells: Sequence[Cell], width: int) -> Sequence[Cell]:
    """Return cells whose lines end with an ellipsis after the last word that fits."""
    return [
        tuple(line if len(line) <= width else next(iter(wrapped(line, width, lines=1)), "") for line in lines_of(cell))
        for cell in cells
    ]


def fit_names(cells: Sequence[Cell], width: int) -> Sequence[Cell]:
    """Return names without their middles; see `shortened_names`."""
    return _by_text(shortened_names, cells, width)


def fit_paths(cells: Sequence[Cell], width: int) -> Sequence[Cell]:
    """Return paths of modules without names in their middles; see `shortened_paths`."""
    return _by_text(shortened_paths, cells, width)


def _by_text(
    shortened: Callable[[Iterable[str], int], Mapping[str, Cell]], cells: Sequence[Cell], width: int
) -> Sequence[Cell]:
    """Return the short form of each cell; `shortened` returns those of all texts, by text."""
    texts = [" ".join(lines_of(cell)) for cell in cells]
    short = shortened(texts, width)
    return [short[text] for text in texts]


def wrapped(line: str, width: int, *, indent: str = "", lines: int | None = None) -> list[str]:
    """Return lines of whole words; a word that is longer than a line loses its middle, and more lines are left out."""
    end = " …"
    longest = max(1, width - len(indent) - (len(end) if lines == 1 else 0))
    return wrap(
        " ".join(without_middle(word, longest) for word in line.split(" ")),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        max_lines=lines,
        placeholder=end,
        break_on_hyphens=False,
    )


def lines_of(cell: Cell) -> tuple[str, ...]:
    """Return the lines of a cell."""
    return (cell,) if isinstance(cell, str) else cell


Columns = dict[str | Column, Callable[[T], object]]  # what returns the value of a row, by the title of its column


def attributes(*names: str) -> Columns[Any]:
    """Return columns that are titled by the attributes of the items that they show."""
    return {name: attrgetter(name) for name in names}


def table_of(
    columns: Columns[T],
    rows: Iterable[T],
    *,
    marked: Callable[[T], bool] = lambda _: False,
    skip_empty: bool = False,
    numbers: tuple[str, int] | None = None,
) -> Table:
    """Return a table with a row for each item.

    Args:
        columns: by title or column, a function that returns the value of an item's cell: None is an empty cell, a float
            is written with two digits, the parts of a tuple are joined by plus signs, those of a list are lines. With a
            title alone, columns of numbers stay whole on a terminal, and text is folded.
        rows: the items.
        marked: a function that returns whether an item needs attention.
        skip_empty: whether columns without text are left out.
        numbers: the title of a column of numbers at the left, and the first number; None if there is none.
    """
    items = [*rows]
    values = {title: [get(item) for item in items] for title, get in columns.items()}
    cells = {title: [*map(_cell, column)] for title, column in values.items()}
    shown = [title for title, column in cells.items() if any(column) or not skip_empty]
    head = [_column(title, values[title]) for title in shown]
    lines = [[cells[title][index] for title in shown] for index in range(len(items))]
    if numbers is not None:
        head.insert(0, Column(numbers[0], right=True))
        lines = [[str(number), *line] for number, line in enumerate(lines, numbers[1])]
    wanting = frozenset(index for index, item in enumerate(items) if marked(item))
    return Table(tuple(head), tuple(map(tuple, lines)), wanting)


def section(
    title: str,
    columns: Columns[T],
    rows: Sequence[T],
    *,
    most: int | None = None,
    marked: Callable[[T], bool] = lambda _: False,
    skip_empty: bool = True,
) -> Iterable[Block]:
    """Yield a heading and a table of the first `most` items, and how many more there are; nothing without items."""
    if rows:
        table = table_of(columns, rows[:most], marked=marked, skip_empty=skip_empty)
        yield from ("", Line(title, "heading"), table)
        yield from hidden_text(rows, most)


def hidden_text(items: Sequence[object], most: int | None, rest: str = "more") -> list[str]:
    """Return a line that says how many of some items are not among the first `most`; nothing if all are."""
    return [f"and {len(items) - most} {rest}"] if most is not None and len(items) > most else []


def _column(title: str | Column, values: Iterable[object]) -> Column:
    """Return the layout of a column; with a title alone, text is folded and numbers are at the right."""
    if isinstance(title, Column):
        return title
    is_text = any(isinstance(value, str | tuple | list) for value in values)
    return Column(title, folded) if is_text else Column(title, right=True)


def _cell(value: object) -> Cell:
    return tuple(map(str, value)) if isinstance(value, list) else cell_text(value)


def cell_text(value: object) -> str:
    """Return the text of a value in a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1e}"
    return " + ".join(map(str, value)) if isinstance(value, tuple) else str(value)
