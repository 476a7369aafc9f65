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
    cells = [[_printable(row[index]) for row in table.rows] for index in range(len(table.columns))]
    shown, widths = _layout(table.columns, cells, available)
    rich_table = rich.table.Table(
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        padding=0,
        show_edge=False,
        expand=any(table.columns[index].fill for index in shown),
    )
    for index, width in zip(shown, widths, strict=True):
        column = table.columns[index]
        justify: Literal["left", "right"] = "right" if column.right else "left"
        rich_table.add_column(column.title, justify=justify, min_width=width, max_width=None if column.fill else width)
    fitted = [_fitted(cells[index], table.columns[index], width) for index, width in zip(shown, widths, strict=True)]
    for number in range(len(table.rows)):
        row = (
            Text("\n".join(lines_of(column[number])), style="red" if (number, index) in table.wrong else "")
            for index, column in zip(shown, fitted, strict=True)
        )
        rich_table.add_row(*row, style="red" if number in table.marked else None)
    return rich_table


def _layout(columns: Sequence[Column], cells: Sequence[Sequence[Cell]], available: int) -> tuple[list[int], list[int]]:
    """Return the indices of the columns that are shown, and their widths."""
    natural = [max(map(_width, column), default=0) for column in cells]
    titles = [max(map(cell_len, column.title.split()), default=0) for column in columns]
    least = [
        max(title, width if column.fit is None else min(width, column.least))
        for column, title, width in zip(columns, titles, natural, strict=True)
    ]
    preferred = [
        max(width, 0 if column.fit is None else min(whole, column.preferred))
        for column, width, whole in zip(columns, least, natural, strict=True)
    ]
    shown = _shown(columns, natural, preferred, available)
    widths = [least[index] for index in shown]
    left = available - sum(widths) - len(widths) + 1
    shrinking = [number for number, index in enumerate(shown) if columns[index].fit is not None]
    while left < 0 and (wide := [number for number in shrinking if widths[number] > titles[shown[number]]]):
        widths[max(wide, key=widths.__getitem__)] -= 1
        left += 1
    growing = [number for number, index in enumerate(shown) if widths[number] < natural[index]]
    while left > 0 and growing:  # up to their preferred widths, then the narrowest first, so that all get a fair share
        number = min(growing, key=lambda number: (widths[number] >= preferred[shown[number]], widths[number]))
        widths[number] += 1
        left -= 1
        growing = [number for number in growing if widths[number] < natural[shown[number]]]
    return shown, widths


def _shown(columns: Sequence[Column], natural: Sequence[int], preferred: Sequence[int], available: int) -> list[int]:
    """Return the indices of the columns without those that are left out for others to have their preferred widths."""
    # Columns that are empty, but not those of a table without rows, are left out first.
    order = [
        column.optional if width or not any(natural) else math.inf
        for column, width in zip(columns, natural, strict=True)
    ]
    shown = list(range(len(columns)))
    while sum(preferred[index] + 1 for index in shown) - 1 > available:
        index = max(shown, key=order.__getitem__)
        if not order[index]:
            break
        shown.remove(index)
    return shown


def _fitted(cells: Sequence[Cell], column: Column, width: int) -> Sequence[Cell]:
    if column.fit is None or max(map(_width, cells), default=0) <= width:
        return cells
    return column.fit(cells, width)


def _width(cell: Cell) -> int:
    return max(map(cell_len, lines_of(cell)), default=0)


def _printable(cell: Cell) -> Cell:
    return short_line(cell, _CELL) if isinstance(cell, str) else tuple(short_line(line, _CELL) for line in cell)
