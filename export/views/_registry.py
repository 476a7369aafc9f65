"""Views by name; each is imported on first use."""

import logging
import os
from pathlib import Path

from filch.steal import writing
from filch.steal.files._outputs import write_output
from filch.steal.text._visible import short_line

from .._errors import ViewError
from ..common._extensions import Extensions
from ..graph._graph import Graph
from ._view import Drawing, View

_log = logging.getLogger("filch")
_BUILT_IN = {
    "dot": "._dot:DotView",
    "hidet": "._hidet:HidetView",
    "html": "._html:HtmlView",
    "model-explorer": "._model_explorer:error_view",
    "model-explorer-status": "._model_explorer:status_view",
    "model-explorer-time": "._model_explorer:time_view",
    "netron": ".netron_files._view:NetronView",
    "png": "._graphviz:PngView",
    "svg": "._graphviz:SvgView",
    "text": "._view:TextView",
    "trace": "._trace:TraceView",
}
_VIEWS = Extensions("view", __package__, _BUILT_IN, ViewError, extras={})


def view_names() -> list[str]:
    """Return the names that `get_view` accepts."""
    return _VIEWS.names()


def get_view(name: str, suffix: str | None = None) -> View:
    """Make a view.

    Args:
        name: one of `view_names()`.
        suffix: a suffix of files that the view has to write; None for any.

    Raises:
        ViewError: there is no view of this name, its library is missing, the object does not have the attributes of a
            view, or the view does not write files with the suffix.
    """
    view = _VIEWS.find(name)()
    suffixes = getattr(view, "suffixes", None)
    if not isinstance(suffixes, tuple) or not suffixes or not callable(getattr(view, "draw", None)):
        raise ViewError(
            f"view {name!r} is a {type(view).__name__}, which needs both `suffixes`, a tuple of text, and the method "
            "`draw` (see filch.export.views.View)"
        )
    if suffix is not None and suffix not in suffixes:
        raise ViewError(f"view {name!r} writes {' and '.join(suffixes)}, not {suffix or 'a file without suffix'}")
    return view  # type: ignore[no-any-return]


def draw(graph: Graph, name: str, suffix: str | None = None) -> Drawing:
    """Draw a graph without writing a file.

    Args:
        graph: the graph.
        name: one of `view_names()`.
        suffix: the suffix of the file; None is the view's first one.

    Raises:
        ViewError: there is no such view, or it does not write such files.
    """
    view = get_view(name, suffix)
    return view.draw(graph, suffix or view.suffixes[0])


def save(graph: Graph, name: str, path: str | os.PathLike[str]) -> Path:
    """Draw a graph to a file.

    Args:
        graph: the graph.
        name: one of `view_names()`.
        path: the path of the file. Missing folders are created. Its suffix is one of the view's; without one, the
            view's first suffix is appended.

    Returns:
        the path of the file. It has another suffix than `path`, and the log has a warning, if the program that draws
        such files is not installed.

    Raises:
        ViewError: there is no such view, it does not write such files, or the file can't be written.
    """
    drawing = draw(graph, name, Path(path).suffix or None)
    if drawing.note:
        _log.warning("%s", short_line(drawing.note))
    return write(drawing, path)


def write(drawing: Drawing, path: str | os.PathLike[str]) -> Path:
    """Write a drawing to `path` with the suffix of the drawing, and return the path of the file.

    Raises:
        ViewError: the file can't be written.
    """
    file = Path(path).with_suffix(drawing.suffix)
    with writing(file, ViewError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_output(file, drawing.content)
    return file
