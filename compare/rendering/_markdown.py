"""Write tables and sentences as Markdown."""

from collections.abc import Iterable, Sequence

from filch.steal.text._markup import for_markdown

from ._table import Block, Table


class Markup(str):
    """Text that is Markdown already, so that it is not escaped."""

    __slots__ = ()


def escaped(value: object) -> str:
    """Return `value` as it reads in Markdown, on one line, unless it is `Markup`."""
    return value if isinstance(value, Markup) else for_markdown(value)


def table(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [columns, [Markup("---")] * len(columns), *rows]
    return [f"| {' | '.join(map(escaped, line))} |" for line in lines]


def as_markdown(blocks: Iterable[Block]) -> str:
    """Return tables and sentences one below the other; a sentence is a paragraph."""
    lines: list[str] = []
    for block in blocks:
        if not isinstance(block, Table):
            lines += [escaped(block), ""]
        else:
            cells = ([part if isinstance(part, str) else " ".join(part) for part in row] for row in block.rows)
            lines += [*table(block.titles, cells), ""]
    return "\n".join(lines[:-1]) + "\n"
