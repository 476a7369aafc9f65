"""What a view is: it reads a `Graph`, and nothing else."""

from dataclasses import dataclass
from typing import Protocol

from ..graph._graph import Graph


@dataclass(frozen=True)
class Drawing:
    """What a view made of a graph.

    Attributes:
        content: the file's bytes; text is UTF-8.
        suffix: the file's (`".html"`).
        note: what the reader has to know: why the suffix is not the wanted one; `""` if nothing.
    """

    content: bytes
    suffix: str
    note: str = ""

    @classmethod
    def of(cls, text: str, suffix: str, note: str = "") -> "Drawing":
        """Of text; names from models may be no valid Unicode, and are escaped where they are not."""
        return cls(text.encode("utf-8", "backslashreplace"), suffix, note)


class View(Protocol):
    """Draws graphs.

    Attributes:
        suffixes: those of the files that it can write; the first is what it writes if nobody says which.
    """

    suffixes: tuple[str, ...]

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """Draw a graph.

        Args:
            graph: with what a comparison found, if `findings` has anything, and with the graph that it was made of, if
                `before` is one. All text in it comes from models and files that nobody has looked at.
            suffix: one of `suffixes`.

        Raises:
            ViewError: this graph can't be drawn so.
        """
        ...
