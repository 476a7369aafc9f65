"""Tables and sentences as text, as wide as a terminal, or as one likes."""

import io
from collections.abc import Iterable
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from filch.steal.text import for_terminal, named

WIDE = 10_000  # no line of a table is as long
_CELL = 1000  # characters


def as_text(parts: Iterable[Table | Text | str], *, width: int | None = None) -> str:
    """Tables and sentences one below the other, without blanks at the ends.

    Args:
        parts: a sentence is one line, and no markup; `""` is an empty line.
        width: characters in a line; None is the terminal's.
    """
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    for part in parts:
        console.print(Text(named(part, WIDE)) if isinstance(part, str) else part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in for_terminal(text.rstrip()).split("\n"))


def echo(text: str) -> None:
    """Print text for people: lines that may hold names from files. JSON is printed as it is, by `typer.echo`."""
    typer.echo(for_terminal(text))


class PlainTable(Table):
    """A table whose cells are texts, not markup; a name in them is shown on one line and shortened."""

    def add_row(self, *cells: Text | str, **options: Any) -> None:  # type: ignore[override]
        """Add a row; a cell of several lines, or with a style, is a `Text`."""
        shown = [Text(named(cell, _CELL)) if isinstance(cell, str) else cell for cell in cells]
        super().add_row(*shown, **options)


def plain_table(*, expand: bool = False) -> PlainTable:
    """A table with a line below its titles, and no other; `expand` makes it as wide as there is room."""
    return PlainTable(
        box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, padding=0, show_edge=False, expand=expand
    )
