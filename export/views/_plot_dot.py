"""`plot_dot`: a model as Graphviz's text, whatever it is held in."""

import os
from pathlib import Path
from typing import Any

from ..program._graph_like import as_graph
from ._dot import dot_text
from ._graphviz import picture
from ._registry import save


class DotText(str):
    """A drawing in Graphviz's language; a notebook shows it as a picture, if Graphviz is installed."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        drawing = picture(self, ".svg")
        return drawing.content.decode() if drawing.suffix == ".svg" else None


def plot_dot(model: Any, path: str | os.PathLike[str] | None = None) -> DotText:
    """Draw a graph with Graphviz.

    Args:
        model: a `Graph`, a `Program`, an ONNX model (`onnx.ModelProto`, `onnx_ir.Model`), which is not changed, the
            path of an ONNX file, a `torch.export` or `torch.fx` program.
        path: of a file to write, too: `.dot`, or `.png` and `.svg`, for which Graphviz has to be installed: if it is
            not, the `.dot` file is written, and the log says how to go on.

    Returns:
        the text in Graphviz's language, which notebooks show as a picture where Graphviz is installed.

    Raises:
        ProgramError: it is nothing of these, or the file can't be read.
        ViewError: the file can't be written.
    """
    graph = as_graph(model)
    if path is not None:
        save(graph, Path(path).suffix.removeprefix(".") or "dot", path)
    return DotText(dot_text(graph))
