"""Markdown of what may hold anything."""

from collections.abc import Iterable, Sequence


def escaped(value: object) -> str:
    """`value` as it reads in a Markdown table, on one line."""
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(map(escaped, line))} |" for line in lines]
