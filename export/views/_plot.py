"""`plot_graph`, a graph into a file whose suffix says how; named as AITemplate has it."""

import os
from pathlib import Path
from typing import Any

from .._errors import ViewError
from ..program._graph_like import as_graph
from ._registry import get_view, save, view_names


def plot_graph(graph: Any, file_path: str | os.PathLike[str]) -> Path:
    """Draw a graph into a file.

    Args:
        graph: a `Graph`, with what a comparison found if it has `findings`, or what has one: a `Program`, an ONNX
            model, the path of an ONNX file, a `torch.export` or `torch.fx` program.
        file_path: of the file. `.html` is a page that opens in a browser from disk, without a server and without a
            network; any other suffix is that of the view that writes such files.

    Returns:
        the path of what was written, as `save` returns it.

    Raises:
        ProgramError: `graph` is none of these, or the file can't be read.
        ViewError: there is no suffix, no view or more than one writes such files, or the disk refuses.
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
    """Those of a view; none of one that can't be loaded, which is no reason not to use another."""
    try:
        return get_view(name).suffixes
    except ViewError:
        return ()
