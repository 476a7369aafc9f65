"""The base class of results, which have an outcome and are written in every format."""

import html
import json
import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from filch.export import Graph
from filch.export.views import draw
from filch.steal.files._outputs import write_output
from filch.steal.text._visible import short_line

from ._console import WIDE, as_text
from ._html import as_fragment, as_page
from ._json import plain
from ._markdown import as_markdown
from ._outcome import Gap, Outcome, Proof
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


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """The base of frozen dataclasses that say whether B computes what A does.

    A subclass defines `proof`, `headline` and `blocks`; as needed also `title`,
    `first_difference`, `next_command`, `derived`, and `graph` or `drawn`.

    Attributes:
        accepted: reasons why a value may stay without a judgment, by its name (see `Gap`).
        FORMAT: the entry of JSON that names the kind of the result, and the version of its format.
    """

    accepted: Mapping[str, str] = field(default_factory=dict)
    FORMAT: ClassVar[Mapping[str, int]] = {}

    @property
    def proof(self) -> Proof:
        """What was judged, and what was not."""
        raise NotImplementedError

    @property
    def headline(self) -> str:
        """The result in one line."""
        raise NotImplementedError

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:
        """Return tables and sentences.

        Args:
            wide: all columns, with nothing cut; `all_rows` has to be given, too.
            all_rows: all rows.
        """
        raise NotImplementedError

    @property
    def outcome(self) -> Outcome:
        """`close`, `different`, or `incomplete`: nothing that was judged is wrong, but not all that is needed was."""
        return self.proof.outcome

    @property
    def close(self) -> bool:
        """Whether the outcome is `close`."""
        return self.outcome == "close"

    @property
    def passes(self) -> bool:
        """Whether the outcome is `close`, or `incomplete` for gaps alone that are all accepted."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """The exit code of a command with this result; see `Proof`."""
        return self.proof.without(self.accepted).exit_code

    def gap_sentences(self) -> list[str]:
        """Return a sentence for each gap, with the reason for which it is accepted."""

        def sentence(gap: Gap) -> str:
            is_accepted = gap.name and gap.name in self.accepted
            return f"{gap}; accepted: {self.accepted[gap.name]}" if is_accepted else str(gap)

        return [short_line(sentence(gap)) for gap in self.proof.gaps]

    @property
    def title(self) -> str:
        """What was compared, which stands above the headline; by default, the headline is there."""
        return self.headline

    def heading(self) -> Iterable[Block]:
        """Return the outcome with the title, and the headline."""
        yield Line(f"{self.outcome.upper()}: {self.title}", self.outcome)
        yield from () if self.title == self.headline else (self.headline,)

    @property
    def first_difference(self) -> str:
        """The first difference as a sentence; `""` if there is none."""
        return ""

    @property
    def next_command(self) -> NextCommand | None:
        """The command that narrows the result down; None if there is none."""
        return None

    def drawn(self) -> Graph | None:
        """Return the graph whose view `html` is the page of the result; None if a page has the tables and sentences."""
        return getattr(self, "graph", None)

    def derived(self) -> Mapping[str, Any]:
        """Return values computed from the fields, by name, for programs that read JSON."""
        return {**self.FORMAT, "close": self.close, "outcome": self.outcome, "headline": self.headline}

    def record(self) -> dict[str, Any]:
        """Return the fields, the derived values and the next command, as JSON has them."""
        return {**plain(self.derived()), **plain(self), "next_command": plain(self.next_command)}

    def table(
        self, *, wide: bool = False, all_rows: bool = False, width: int | None = None, color: bool = False
    ) -> str:
        """Return the result as text.

        Args:
            wide: all rows and columns, nothing cut.
            all_rows: all rows.
            width: characters in a line; None is the terminal's width.
            color: whether it is colored, by escape sequences of a terminal.
        """
        return self._text(self.blocks(wide=wide, all_rows=wide or all_rows), wide=wide, width=width, color=color)

    def _text(self, blocks: Iterable[Block], *, wide: bool, width: int | None, color: bool) -> str:
        """Return tables and sentences, and below them the next command, as text."""
        return as_text([*blocks, *self._next_command_blocks()], width=WIDE if wide else width, color=color)

    def _next_command_blocks(self) -> Iterable[Block]:
        return () if self.next_command is None else ("", *self.next_command.blocks())

    def __repr__(self) -> str:
        return short_line(f"<{type(self).__name__}: {self.headline}>", _REPR)

    def __str__(self) -> str:
        return self.table(width=80)

    def _repr_html_(self) -> str:
        """Return the tables and sentences of `table`, for a notebook."""
        return as_fragment([*self.blocks(), *self._next_command_blocks()])

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the result as JSON, also written to `path` if one is given; inf and NaN are strings."""
        return written(json.dumps(self.record(), indent=1), path)

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the result as Markdown, also written to `path` if one is given."""
        return written(as_markdown(self.blocks(wide=True, all_rows=True)), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the result as a self-contained HTML page, also written to `path` if one is given."""
        return written(self._page(), path)

    def _page(self) -> str:
        """Return the page: the view of the drawn graph, or else all tables and sentences."""
        graph = self.drawn()
        if graph is not None:
            return draw(graph, "html").content.decode("utf-8")
        return as_page(self.title, [*self.blocks(wide=True, all_rows=True)])

    def show(self) -> None:
        """Show the page: inside a notebook, or in the browser."""
        show_page(self.to_html())


def written(text: str, path: str | os.PathLike[str] | None) -> str:
    """Write a text to `path`, if one is given, and return it; names in it may be invalid Unicode."""
    if path is not None:
        write_output(path, text, errors="backslashreplace")
    return text


_HEIGHT = 640  # pixels


def show_page(page: str) -> None:
    """Show an HTML page: in the output of the cell if IPython runs a notebook, else in the browser.

    Args:
        page: the whole page. In a notebook it is in a frame of its own; for the browser it is written to a temporary
            file, which stays.
    """
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel"):
        display = import_module("IPython.display")  # it is there if a notebook runs
        frame = f'<iframe srcdoc="{html.escape(page)}" width="100%" height="{_HEIGHT}" style="border: 0"></iframe>'
        display.display(display.HTML(frame))
        return
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="filch-", delete=False, encoding="utf-8") as file:
        file.write(page)
    webbrowser.open(Path(file.name).as_uri())
