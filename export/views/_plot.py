"""`plot_graph` and `plot_dot`: draw any model; the names are from AITemplate and onnx-diagnostic."""

import os
from pathlib import Path
from typing import Any

from .._errors import ViewError
from ..program._graph_like import as_graph
from ._dot import dot_text
from ._graphviz import picture
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
    names = ["html"] if suffix in views["html"] else [name for name, suffixes in views.items() if suffix in suffixes]
    if len(names) > 1:
        raise ViewError(
            f"several views write {suffix} files, so {os.fspath(file_path)!r} is ambiguous: "
            f"write filch.export.views.save(graph, {names[0]!r}, path), or one of {', '.join(names[1:])}"
        )
    if not names:
        known = ", ".join(sorted({suffix for suffixes in views.values() for suffix in suffixes}))
        raise ViewError(f"no view writes files with the suffix of {os.fspath(file_path)!r}: use one of {known}")
    return save(as_graph(graph), names[0], file_path)


def _suffixes(name: str) -> tuple[str, ...]:
    """Return the suffixes of a view; none if it can't be loaded, so that other views still work."""
    try:
        return get_view(name).suffixes
    except ViewError:
        return ()


class DotText(str):
    """A drawing in DOT; notebooks show it as a picture if Graphviz is installed."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        drawing = picture(self, ".svg")
        return drawing.content.decode() if drawing.suffix == ".svg" else None


def plot_dot(model: Any, path: str | os.PathLike[str] | None = None) -> DotText:
    """Draw a graph with Graphviz.

    Args:
        model: a `Graph`, a `Program`, an ONNX model (`onnx.ModelProto` or `onnx_ir.Model`), the path of an ONNX file,
            or a `torch.export` or `torch.fx` program; it is not changed.
        path: the path of a file to write as well: `.dot`, `.png` or `.svg`. The last two need Graphviz; if it is not
            installed, a `.dot` file is written, and the log says how to draw it.

    Returns:
        the drawing in DOT, which notebooks show as a picture if Graphviz is installed.

    Raises:
        ProgramError: `model` is none of these, or the file can't be read.
        ViewError: the file can't be written.
    """
    graph = as_graph(model)
    if path is not None:
        save(graph, Path(path).suffix.removeprefix(".") or "dot", path)  # these views are named like their suffixes
    return DotText(dot_text(graph))
