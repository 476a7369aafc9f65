"""The base class of results, which writes them in every format."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from filch.steal import write_output
from filch.steal.text import short_line

from ._console import WIDE, as_text
from ._html import as_fragment
from ._json import plain
from ._markdown import as_markdown
from ._table import Block, Line

_REPR = 400  # characters


@dataclass(frozen=True)
class NextCommand:
    """A command that narrows a result down.

    Attributes:
        command: the command line, or an expression of Python if the result was made from objects in memory.
        purpose: what it does, as a phrase.
    """

    command: str
    purpose: str

    def blocks(self) -> Iterable[Block]:
        """Return the lines for people."""
        yield Line(f"Next, {self.purpose}:", "heading")
        yield Line(f"  {self.command}", "command")


class Result:
    """The base of frozen dataclasses that are written as text, Markdown and JSON.

    A subclass defines `blocks`, the tables and sentences for people, and `derived`, entries of JSON beside its fields.
    """

    def blocks(self, *, wide: bool = False) -> Iterable[Block]:
        """Return tables and sentences; if `wide`, with all rows and columns and nothing cut."""
        raise NotImplementedError

    @property
    def headline(self) -> str:
        """The result in one line."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return short_line(f"<{type(self).__name__}: {self.headline}>", _REPR)

    def _repr_html_(self) -> str:
        """Return the tables and sentences of `table`, for a notebook."""
        return as_fragment([*self.blocks(), *(self.next_command.blocks() if self.next_command is not None else ())])

    @property
    def next_command(self) -> NextCommand | None:
        """The command that narrows the result down; None if there is none."""
        return None

    def derived(self) -> Mapping[str, Any]:
        """Return values computed from the fields, by name, for programs that read JSON."""
        return {}

    def record(self) -> dict[str, Any]:
        """Return the fields, the derived values and the next command, as JSON has them."""
        return {**plain(self.derived()), **plain(self), "next_command": plain(self.next_command)}

    def table(self, *, wide: bool = False, width: int | None = None, color: bool = False) -> str:
        """Return the result as text.

        Args:
            wide: all rows and columns, nothing cut.
            width: characters in a line; None is the terminal's width.
            color: whether it is colored, by escape sequences of a terminal.
        """
        return self._text(self.blocks(wide=wide), wide=wide, width=width, color=color)

    def _text(self, blocks: Iterable[Block], *, wide: bool, width: int | None, color: bool) -> str:
        """Return tables and sentences, and below them the next command, as text."""
        after = ("", *self.next_command.blocks()) if self.next_command is not None else ()
        return as_text([*blocks, *after], width=WIDE if wide else width, color=color)

    def __str__(self) -> str:
        return self.table(width=80)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the result as JSON, also written to `path` if one is given; inf and NaN are strings."""
        return written(json.dumps(self.record(), indent=1), path)

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the result as Markdown, also written to `path` if one is given."""
        return written(as_markdown(self.blocks(wide=True)), path)


def written(text: str, path: str | os.PathLike[str] | None) -> str:
    """Write a text to `path`, if one is given, and return it; names in it may be invalid Unicode."""
    if path is not None:
        write_output(path, text, errors="backslashreplace")
    return text
