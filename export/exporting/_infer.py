"""Infer the types and shapes that an exporter left out."""

import logging
from collections.abc import Callable

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError
from onnx_ir import serde

_log = logging.getLogger("filch")
_SMALL = 1024  # elements; a constant up to this size may be a shape, whose elements inference needs


def infer_types(model: ir.Model, check: Callable[[onnx.GraphProto], bool] = lambda _: True) -> None:
    """Fill in missing types and shapes of a model's values with ONNX's shape inference.

    Types and shapes that the exporter declared do not change. If inference fails, the model stays as it is: missing
    types do not prevent the export.

    Args:
        model: the model.
        check: returns whether inference may compute the contents of shapes (`data_prop`); it raises a `ValueError` if
            nothing may be inferred.
    """
    values = [value for node in model.graph for value in node.outputs]
    if all(value.type is not None and value.shape is not None for value in values):
        return
    try:
        light = serde.serialize_model(_without_weights(model))
        proto = onnx.shape_inference.infer_shapes(light, data_prop=check(light.graph))
    except (onnx.shape_inference.InferenceError, EncodeError, ValueError) as error:
        _log.debug("shape inference failed; types and shapes that the exporter left out stay unknown: %s", error)
        return
    by_name = {value.name: value for node in serde.deserialize_model(proto).graph for value in node.outputs}
    for value in values:
        inferred = by_name.get(value.name, value)
        value.type = inferred.type if value.type is None else value.type
        value.shape = inferred.shape if value.shape is None else value.shape


def _without_weights(model: ir.Model) -> ir.Model:
    """Return a copy with inputs in place of large constants, because protobuf is limited to 2 GB."""
    light = model.clone()
    for name, value in [*light.graph.initializers.items()]:
        if value.const_value is not None and value.const_value.size > _SMALL:
            value.shape = value.shape or ir.Shape(value.const_value.shape.numpy())
            value.type = value.type or ir.TensorType(value.const_value.dtype)
            del light.graph.initializers[name]
            value.const_value = None
            light.graph.inputs.append(value)
    return light
