"""Graphs as files that Netron opens."""

from ..._errors import ViewError
from ...graph._graph import Graph
from .._view import Drawing
from ._attachment import attachment
from ._message import message
from ._onnx import annotated


class NetronView:
    """See `View`; <https://netron.app>, and `pip install netron`.

    `.onnx` is the model with what is known of each node in its metadata, `.json` the same for Netron to put upon the
    model's own file, and `.netron` a drawing of any graph.
    """

    suffixes: tuple[str, ...] = (".onnx", ".netron", ".json")

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        if suffix == ".netron":
            return Drawing.of(message(graph), suffix)
        if suffix == ".json":
            return Drawing.of(attachment(graph), suffix)
        if graph.onnx is None:
            raise ViewError(
                f"graph {graph.name!r} is not one of ONNX, and can't be written as {suffix}: choose the suffix .netron"
            )
        return annotated(graph, graph.onnx)
