"""`plot_dot`: draw any model with Graphviz."""

import os
from pathlib import Path
from typing import Any

from ..program._graph_like import as_graph
from ._dot import dot_text
from ._graphviz import picture
from ._registry import save


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
        save(graph, Path(path).suffix.removeprefix(".") or "dot", path)
    return DotText(dot_text(graph))
