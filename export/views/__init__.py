"""Draw graphs as HTML pages, pictures, text and files for other viewers.

Other packages add views as entry points `filch.views`.
"""

from ._hidet import netron
from ._plot import plot_dot, plot_graph
from ._plot_legend import plot_legend
from ._registry import draw, get_view, save, view_names, write
from ._serve import Served, serve
from ._view import Drawing, View

__all__ = [
    "Drawing",
    "Served",
    "View",
    "draw",
    "get_view",
    "netron",
    "plot_dot",
    "plot_graph",
    "plot_legend",
    "save",
    "serve",
    "view_names",
    "write",
]
