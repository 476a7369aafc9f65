"""Tables and sentences as text, as wide as a terminal, or as one likes."""

import io
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 10_000  # no line of a table is as long


def as_text(parts: Iterable[Table | Text | str], *, width: int | None = None) -> str:
    """Tables and sentences one below the other, without blanks at the ends.

    Args:
        parts: what a sentence holds is no markup; `""` is an empty line.
        width: characters in a line; None is the terminal's.
    """
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    for part in parts:
        console.print(Text(part) if isinstance(part, str) else part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def plain_table(*, expand: bool = False) -> Table:
    """A table with a line below its titles, and no other; `expand` makes it as wide as there is room."""
    return Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, padding=0, show_edge=False, expand=expand)
