"""Copy an ONNX model, with the facts of its nodes and values as metadata for Netron."""

from collections.abc import Iterable, Mapping

import onnx_ir as ir
from google.protobuf.message import EncodeError

from ..._errors import ViewError
from ...graph._facts import node_facts, unicode, value_facts
from ...graph._graph import Graph
from .._view import Drawing
from ._json import add_prefix

_LIMIT = 2**31 - 1  # bytes of a protobuf message
_NOWHERE = "left-out"  # the name of a file that does not exist


def annotate_model(graph: Graph, model: ir.Model) -> Drawing:
    """Return the model of a graph in one file with its weights; nodes without a name get those of the graph.

    Netron 9 shows the metadata of a selected node, and the documentation of a value next to its type.

    Raises:
        ViewError: the file would exceed 2 GiB.
    """
    copy = model.clone()
    for node in copy.graph:
        known = next(
            (graph.producer[out.name] for out in node.outputs if out.name and out.name in graph.producer), None
        )
        if known is not None:
            node.name = node.name or known.name
            node.metadata_props.update(_metadata(node_facts(graph, known)))
    for value in _values(copy.graph):
        known_facts = value_facts(graph, value.name or "")
        if known_facts:
            value.metadata_props.update(_metadata(known_facts))
            doc = unicode(", ".join(f"{name}: {text}" for name, text in known_facts.items()))
            value.doc_string = f"{value.doc_string}\n{doc}" if value.doc_string else doc
    copy.metadata_props.update({f"filch.remark.{i}": unicode(remark) for i, remark in enumerate(graph.remarks)})
    note = _load_weights(copy)
    try:
        content: bytes = ir.serde.serialize_model(copy).SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ViewError(f"the model can't be written as one ONNX file: {error}; choose the suffix .json") from error
    return Drawing(content, ".onnx", note)


def _metadata(facts: Mapping[str, str]) -> dict[str, str]:
    return {unicode(name): unicode(text) for name, text in add_prefix(facts).items()}


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    computed = (value for node in graph for value in node.outputs)
    return dict.fromkeys((*graph.inputs, *graph.initializers.values(), *computed))


def _load_weights(model: ir.Model) -> str:
    """Load external weights into the model; return a note on those that stay without numbers, or `""`."""
    weights = [value for graph in model.graphs() for value in graph.initializers.values()]
    total = sum(value.const_value.nbytes for value in weights if value.const_value is not None)
    if total > _LIMIT:
        raise ViewError(
            f"the model's weights are {total / 2**30:.1f} GiB, and one ONNX file holds 2: choose the suffix .json, and "
            "open it in Netron after the model's own file"
        )
    unreadable: list[ir.ExternalTensor] = []
    for value in weights:
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            try:
                (value.const_value,) = ir.external_data.convert_tensors_from_external([tensor])
            except (OSError, ValueError):
                unreadable.append(tensor)
                value.const_value = _without_numbers(tensor)
    if not unreadable:
        return ""
    return (
        f"{len(unreadable)} of {len(weights)} weights are left out, as {str(unreadable[0].path)!r} can't be read any "
        "more: the file can be looked at, not run"
    )


def _without_numbers(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
    """Return a weight with dtype and shape whose external file does not exist."""
    return ir.ExternalTensor(
        _NOWHERE, None, None, tensor.dtype, shape=ir.Shape(tensor.shape), name=tensor.name or "", base_dir=""
    )
