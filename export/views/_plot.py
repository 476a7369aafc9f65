"""`plot_graph`: draw a graph to a file in the format of its suffix; the name is from AITemplate."""

import os
from pathlib import Path
from typing import Any

from .._errors import ViewError
from ..program._graph_like import as_graph
from ._registry import get_view, save, view_names


def plot_graph(graph: Any, file_path: str | os.PathLike[str]) -> Path:
    """Draw a graph to a file.

    Args:
        graph: a `Graph`, drawn with its `findings` if it has any, a `Program`, an ONNX model, the path of an ONNX file,
            or a `torch.export` or `torch.fx` program.
        file_path: the path of the file. `.html` is a page that needs neither a server nor a network; other suffixes
            select the view that writes such files.

    Returns:
        the path of the written file; see `save`.

    Raises:
        ProgramError: `graph` is none of these, or the file can't be read.
        ViewError: no view or several views write files with this suffix, or the file can't be written.
    """
    suffix = Path(file_path).suffix
    views = {name: suffixes for name in view_names() if (suffixes := _suffixes(name))}
    fitting = ["html"] if suffix in views["html"] else [name for name, suffixes in views.items() if suffix in suffixes]
    if len(fitting) > 1:
        raise ViewError(
            f"several views write {suffix} files, and {os.fspath(file_path)!r} does not say which: "
            f"write filch.export.views.save(graph, {fitting[0]!r}, path), or one of {', '.join(fitting[1:])}"
        )
    if not fitting:
        known = ", ".join(sorted({suffix for suffixes in views.values() for suffix in suffixes}))
        raise ViewError(
            f"the suffix of {os.fspath(file_path)!r} says nothing of how to draw a graph: use one of {known}"
        )
    return save(as_graph(graph), fitting[0], file_path)


def _suffixes(name: str) -> tuple[str, ...]:
    """Return the suffixes of a view; none if it can't be loaded, so that other views still work."""
    try:
        return get_view(name).suffixes
    except ViewError:
        return ()
