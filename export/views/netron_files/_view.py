"""The view for Netron."""

from ..._errors import ViewError
from ...graph._graph import Graph
from .._view import Drawing
from ._json import serialize_attachment, serialize_message
from ._onnx import annotate_model


class NetronView:
    """See `View`; <https://netron.app>, and `pip install netron`.

    `.onnx` is the model with findings and origins (module, line of code) in its metadata, `.json` is an attachment that
    adds the same to the model's own file, and `.netron` is a drawing of any graph.
    """

    suffixes: tuple[str, ...] = (".onnx", ".netron", ".json")

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        if suffix == ".netron":
            return Drawing.of(serialize_message(graph), suffix)
        if suffix == ".json":
            return Drawing.of(serialize_attachment(graph), suffix)
        if graph.onnx is None:
            raise ViewError(
                f"graph {graph.name!r} was not read from an ONNX model and can't be written as {suffix}: "
                "choose the suffix .netron"
            )
        return annotate_model(graph, graph.onnx)
