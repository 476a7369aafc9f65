"""Types and shapes of the values that an exporter leaves without."""

import logging

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError
from onnx_ir import serde

_log = logging.getLogger("filch")
_SMALL = 1024  # elements: a constant of no more may be a shape, whose numbers inference has to know


def infer_types(model: ir.Model) -> None:
    """Give the values of a model's graph that have no type or no shape those that ONNX's shape inference finds.

    What the exporter says of a value stays as it is; a value that inference knows nothing of does, too, and so does the
    whole model where inference fails: it is no reason not to export.
    """
    made = [value for node in model.graph for value in node.outputs]
    if all(value.type is not None and value.shape is not None for value in made):
        return
    try:
        proto = onnx.shape_inference.infer_shapes(serde.serialize_model(_without_weights(model)), data_prop=True)
    except (onnx.shape_inference.InferenceError, EncodeError, ValueError) as error:
        _log.debug("types and shapes that the exporter left out stay unknown: %s", error)
        return
    found = {value.name: value for node in serde.deserialize_model(proto).graph for value in node.outputs}
    for value in made:
        inferred = found.get(value.name, value)
        value.type = inferred.type if value.type is None else value.type
        value.shape = inferred.shape if value.shape is None else value.shape


def _without_weights(model: ir.Model) -> ir.Model:
    """A copy whose large constants are inputs: protobuf holds no more than 2 GB."""
    light = model.clone()
    for name, value in [*light.graph.initializers.items()]:
        if value.const_value is not None and value.const_value.size > _SMALL:
            value.shape = value.shape or ir.Shape(value.const_value.shape.numpy())
            value.type = value.type or ir.TensorType(value.const_value.dtype)
            del light.graph.initializers[name]
            value.const_value = None
            light.graph.inputs.append(value)
    return light
