"""Write tables and sentences as text, for a terminal or with a given width."""

import io
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

import rich.table
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from filch.steal.text._visible import for_terminal, short_line

from ._table import Block, Cell, Column, Line, Table, lines_of

WIDE = 10_000  # characters; more than any line of a table
_USUAL, _NARROWEST = 80, 40  # characters
_CELL = 1000  # characters
_STYLES = {"close": "bold green", "different": "bold red", "incomplete": "bold yellow", "heading": "bold"}


def as_text(blocks: Iterable[Block], *, width: int | None = None, color: bool = False) -> str:
    """Return tables and sentences one below the other, without trailing blanks.

    Args:
        blocks: tables and sentences.
        width: characters in a line; None is the terminal's width.
        color: whether verdicts and rows that need attention are colored by escape sequences.
    """
    system: Literal["standard"] | None = "standard" if color else None
    console = Console(file=io.StringIO(), width=width, color_system=system, force_terminal=color, highlight=False)
    if width is None:  # of the terminal, or as COLUMNS says; 0 is a width that is not known
        console.width = min(max(console.width or _USUAL, _NARROWEST), WIDE)
    for block in blocks:
        if isinstance(block, Table):
            console.print(_rich_table(block, console.width))
            continue
        line = block if isinstance(block, Line) else Line(block)
        is_command = line.style == "command"
        text = Text(short_line(line.text, WIDE), style=_STYLES.get(line.style, ""))
        console.print(text, soft_wrap=is_command)
    text = console.file.getvalue().rstrip()  # type: ignore[attr-defined]
    # Each cell and line is printable already; the escape sequences are those of the styles.
    return "\n".join(line.rstrip() for line in (text if color else for_terminal(text)).split("\n"))


def is_colored() -> bool:
    """Return whether standard output is a terminal that shows colors, and the user wants them (`NO_COLOR`)."""
    console = Console(file=sys.stdout)
    return console.is_terminal and console.color_system is not None and not console.no_color


def echo(text: str) -> None:
    """Print text for people, with escapes removed, as it may hold names from files; print JSON with `typer.echo`."""
    typer.echo(for_terminal(text))


def print_text(text: str) -> None:
    """Print from inside the library, for options that request it; what standard output can't show as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))


def _rich_table(table: Table, available: int) -> rich.table.Table:
    """Return a table of `rich` that fits into a number of characters."""
    cells = [[_printable(row[index]) for row in table.rows] for index in range(len(table.columns))]
    columns = [_ColumnLayout(index, table.columns[index], column) for index, column in enumerate(cells)]
    shown = _without_optional(columns, available)
    _choose_widths(shown, available)
    rich_table = rich.table.Table(
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        padding=0,
        show_edge=False,
        expand=any(item.column.fill for item in shown),
    )
    for item in shown:
        justify: Literal["left", "right"] = "right" if item.column.right else "left"
        most = None if item.column.fill else item.width
        rich_table.add_column(item.column.title, justify=justify, min_width=item.width, max_width=most)
    for number, row in enumerate(zip(*(item.fitted_cells for item in shown), strict=True)):
        texts = (
            Text("\n".join(lines_of(cell)), style="red" if (number, item.index) in table.wrong else "")
            for item, cell in zip(shown, row, strict=True)
        )
        rich_table.add_row(*texts, style="red" if number in table.marked else None)
    return rich_table


class _ColumnLayout:
    """A column of a table while its width is chosen; all widths are in characters.

    Attributes:
        index: its index in the table.
        column: what the table says about it.
        title_width: the width of the longest word of its title, below which it is never cut.
        whole_width: the width of its longest line, with which nothing in it is cut.
        preferred_width: the width for which optional columns are left out.
        width: the width chosen so far; at first the least one that the column asks for.
    """

    def __init__(self, index: int, column: Column, cells: Sequence[Cell]) -> None:
        self.index, self.column, self._cells = index, column, cells
        self.title_width = max(map(cell_len, column.title.split()), default=0)
        self.whole_width = max((cell_len(line) for cell in cells for line in lines_of(cell)), default=0)
        self.width = self.preferred_width = max(self.title_width, self.whole_width)
        if column.fit is not None:
            self.width = max(self.title_width, min(self.whole_width, column.least))
            self.preferred_width = max(self.width, min(self.whole_width, column.preferred))

    @property
    def fitted_cells(self) -> Sequence[Cell]:
        """The cells, shortened or wrapped to the width if they are wider."""
        fit = self.column.fit
        return self._cells if fit is None or self.whole_width <= self.width else fit(self._cells, self.width)


def _without_optional(columns: Sequence[_ColumnLayout], available: int) -> list[_ColumnLayout]:
    """Return the columns that are shown: optional ones are left out until all others have their preferred widths."""
    has_cells = any(item.whole_width for item in columns)

    def priority(item: _ColumnLayout) -> float:
        """Return a larger number for a column that is left out sooner, 0 for one that is always shown."""
        is_empty = has_cells and not item.whole_width  # in a table without rows, all columns are empty
        return math.inf if is_empty else item.column.optional

    shown = [*columns]
    while sum(item.preferred_width + 1 for item in shown) - 1 > available:
        first = max(shown, key=priority)
        if not priority(first):
            break
        shown.remove(first)
    return shown


def _choose_widths(columns: Sequence[_ColumnLayout], available: int) -> None:
    """Shrink columns that are too wide together, the widest first, or let those with cut cells grow."""
    left = available - sum(item.width + 1 for item in columns) + 1  # a blank between two columns
    while left < 0 and (wide := [item for item in columns if item.column.fit and item.width > item.title_width]):
        max(wide, key=lambda item: item.width).width -= 1
        left += 1
    while left > 0 and (narrow := [item for item in columns if item.width < item.whole_width]):
        # Up to their preferred widths, then the narrowest first, so that all get a fair share.
        min(narrow, key=lambda item: (item.width >= item.preferred_width, item.width)).width += 1
        left -= 1


def _printable(cell: Cell) -> Cell:
    """Return a cell without control characters, and not longer than a terminal can show."""
    return short_line(cell, _CELL) if isinstance(cell, str) else tuple(short_line(line, _CELL) for line in cell)
