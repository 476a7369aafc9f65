"""Tables in Markdown."""

from collections.abc import Iterable, Sequence

from filch.steal.text import for_markdown


class Markup(str):
    """Text that is Markdown already, and not escaped."""

    __slots__ = ()


def escaped(value: object) -> str:
    """`value` as it reads in Markdown, on one line, unless it is `Markup`."""
    return value if isinstance(value, Markup) else for_markdown(value)


def table(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [columns, [Markup("---")] * len(columns), *rows]
    return [f"| {' | '.join(map(escaped, line))} |" for line in lines]
