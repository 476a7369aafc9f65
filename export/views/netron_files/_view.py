"""The view for Netron."""

from ..._errors import ViewError
from ...graph._graph import Graph
from .._view import Drawing
from ._json import attachment, message
from ._onnx import annotated


class NetronView:
    """See `View`; <https://netron.app>, and `pip install netron`.

    `.onnx` is the model with facts in its metadata, `.json` is an attachment with the same facts for the model's own
    file, and `.netron` is a drawing of any graph.
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
