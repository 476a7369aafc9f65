"""Write graphs as text files."""

from ..graph._graph import Graph
from ._view import Drawing


class TextView:
    """See `View`."""

    suffixes: tuple[str, ...] = (".txt",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return Drawing.of(f"{graph}\n", suffix)
