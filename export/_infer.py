"""Types and shapes of the values that an exporter leaves without."""

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass


def infer_types(model: ir.Model) -> None:
    """Give the values of a model's graph that have no type or no shape those that ONNX's shape inference finds.

    What the exporter says of a value stays as it is; a value that inference knows nothing of does, too.
    """
    unknown = [value for node in model.graph for value in node.outputs if value.type is None or value.shape is None]
    if not unknown:
        return
    told = {value: (value.type, value.shape) for node in model.graph for value in node.outputs}
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    for value, (kind, shape) in told.items():
        value.type = value.type if kind is None else kind
        value.shape = value.shape if shape is None else shape
