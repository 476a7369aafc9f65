"""Write tables and sentences as text, for a terminal or with a given width."""

import io
import sys
from collections.abc import Iterable

import rich.table
import typer
from rich import box
from rich.console import Console
from rich.text import Text

from filch.steal.text import for_terminal, short_line

from ._table import Block, Cell, Column, Table

WIDE = 10_000  # characters; more than any line of a table
_CELL = 1000  # characters


def as_text(blocks: Iterable[Block], *, width: int | None = None) -> str:
    """Return tables and sentences one below the other, without trailing blanks.

    Args:
        blocks: tables and sentences; a sentence is one line of plain text, `""` an empty line.
        width: characters in a line; None is the terminal's width.
    """
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    for block in blocks:
        console.print(Text(short_line(block, WIDE)) if isinstance(block, str) else _rich_table(block))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in for_terminal(text.rstrip()).split("\n"))


def echo(text: str) -> None:
    """Print text for people, with escapes removed, as it may hold names from files; print JSON with `typer.echo`."""
    typer.echo(for_terminal(text))


def print_text(text: str) -> None:
    """Print from inside the library, for options that request it."""
    sys.stdout.write(f"{text}\n")


def _rich_table(table: Table) -> rich.table.Table:
    rich_table = rich.table.Table(
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        padding=0,
        show_edge=False,
        expand=any(column.fill for column in table.columns),
    )
    for column in table.columns:
        rich_table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=column.overflow == "never",  # the other columns shrink if a line is too long
            overflow="fold" if column.overflow == "never" else column.overflow,
            min_width=column.least if column.width is None else column.width,
            max_width=column.width,
            ratio=1 if column.fill else None,
        )
    for row in table.rows:
        rich_table.add_row(*map(_rich_cell, row, table.columns))
    return rich_table


def _rich_cell(cell: Cell, column: Column) -> Text:
    lines = (cell,) if isinstance(cell, str) else cell
    text = "\n".join(short_line(line, _CELL) for line in lines)
    return Text(text, no_wrap=True, overflow="ellipsis") if column.overflow == "ellipsis" else Text(text)
