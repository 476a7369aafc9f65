"""The protocol of views, which read a `Graph` and nothing else, and the simplest view."""

from dataclasses import dataclass
from typing import Protocol

from ..graph._graph import Graph


@dataclass(frozen=True)
class Drawing:
    """The drawing of a graph.

    Attributes:
        content: the bytes of the file; text is UTF-8.
        suffix: the suffix of the file (`".html"`).
        note: a message for the user, for example why the suffix is not the requested one; may be empty.
    """

    content: bytes
    suffix: str
    note: str = ""

    @classmethod
    def of(cls, text: str, suffix: str, note: str = "") -> "Drawing":
        """Create a drawing from text; names that are not valid Unicode are escaped."""
        return cls(text.encode("utf-8", "backslashreplace"), suffix, note)


class View(Protocol):
    """Draws graphs.

    Attributes:
        suffixes: the suffixes of the files that it can write; the first is the default.
    """

    suffixes: tuple[str, ...]

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """Draw a graph.

        Args:
            graph: the graph, with the `findings` of a comparison and its `source_graph`, if it has them. All text in it
                comes from untrusted models and files.
            suffix: one of `suffixes`.

        Raises:
            ViewError: this graph can't be drawn with this suffix.
        """
        ...


class TextView:
    """See `View`: the text of the graph, as `str` returns it."""

    suffixes: tuple[str, ...] = (".txt",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return Drawing.of(f"{graph}\n", suffix)
