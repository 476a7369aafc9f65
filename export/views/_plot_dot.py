"""`plot_dot`: a model as Graphviz's text, whatever it is held in."""

import os
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from .._errors import ViewError
from .._from_onnx import graph_from_onnx
from .._graph import Graph
from ._dot import dot_text


def plot_dot(model: Any, path: str | os.PathLike[str] | None = None) -> str:
    """Draw a graph with Graphviz.

    Args:
        model: a `Graph`, what has one (a `Program`), or an ONNX model (`onnx.ModelProto`, `onnx_ir.Model`), which is
            not changed.
        path: of a file to write, too: `.dot`, or `.png` and `.svg`, for which Graphviz has to be installed: if it is
            not, the `.dot` file is written, and the log says how to go on.

    Returns:
        the text in Graphviz's language.

    Raises:
        ViewError: it is nothing of these, or the file can't be written.
    """
    graph = _graph(model)
    if path is not None:
        graph.view(Path(path).suffix.removeprefix(".") or "dot", path)
    return dot_text(graph)


def _graph(model: Any) -> Graph:
    if isinstance(model, onnx.ModelProto):
        return graph_from_onnx(ir.from_proto(model))
    if isinstance(model, ir.Model):
        return graph_from_onnx(model)
    graph = getattr(model, "graph", model)
    if not isinstance(graph, Graph):
        raise ViewError(f"a {type(model).__name__} is no graph: give a Graph, a Program or an ONNX model")
    return graph
