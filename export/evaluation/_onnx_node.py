"""One node of an ONNX graph in float64, by the specification's own evaluator."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_ir import serde

from ..common._arrays import array_to_torch, torch_to_array

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def evaluate(model: ir.Model, node: ir.Node, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a node makes, by name, in float64; integers stay as they are.

    Args:
        model: what the node is of: its opsets and functions count.
        node: it; casts to other floating-point types are casts to float64.
        inputs: what it reads, by name: float64, and integers.

    Returns:
        its outputs; none of them if the evaluator does not know the operator, or the node has a graph inside.
    """
    if any(
        attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in node.attributes.values()
    ):
        return {}
    proto = serde.serialize_node(node)
    for attribute in proto.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and ir.DataType(attribute.i) in _FLOATS:
            attribute.i = onnx.TensorProto.DOUBLE
    outputs = [name for name in proto.output if name]
    taken, made = ([helper.make_empty_tensor_value_info(name) for name in names] for names in (inputs, outputs))
    opsets = [helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    called = node.op_identifier() in model.functions
    functions = [serde.serialize_function(function) for function in model.functions.values()] if called else []
    whole = helper.make_model(
        helper.make_graph([proto], "one", taken, made), opset_imports=opsets, functions=functions, ir_version=10
    )
    try:
        with np.errstate(all="ignore"):  # an overflow is a result, which numpy would warn of
            found = ReferenceEvaluator(whole).run(
                None, {name: torch_to_array(tensor) for name, tensor in inputs.items()}
            )
    except Exception:  # noqa: BLE001  it raises whatever numpy does, and NotImplementedError
        return {}
    arrays = {
        name: value for name, value in zip(outputs, found, strict=True) if isinstance(value, np.ndarray | np.generic)
    }
    return {name: array_to_torch(array) for name, array in arrays.items()}
