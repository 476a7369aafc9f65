"""Pictures of graphs. A view is one file here, or an entry point `filch.views` of another package."""

from ._plot import plot_graph
from ._registry import draw, get_view, save, view_names
from ._view import Drawing, View

__all__ = [
    "Drawing",
    "View",
    "draw",
    "get_view",
    "plot_graph",
    "save",
    "view_names",
]
