"""Compute one node of an ONNX graph in float64: with the ONNX reference evaluator, or by PyTorch."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_ir import serde

from ..common._arrays import array_to_torch, torch_to_array
from ..graph._from_onnx import subgraphs
from ._torch_operators import evaluate_by_torch

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def evaluate(model: ir.Model, node: ir.Node, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Compute a node's outputs in float64; integers stay integers.

    Args:
        model: the node's model, for its opsets and functions.
        node: the node; casts to other floating-point types become casts to float64.
        inputs: the values that it reads, by name: float64, and integers.

    Returns:
        the outputs by name, which must not be changed: they may share the memory of inputs. Empty if the evaluator does
        not support the operator, or the node has a subgraph.
    """
    if subgraphs(node):
        return {}
    if (by_torch := evaluate_by_torch(node, inputs)) is not None:
        return by_torch
    proto = serde.serialize_node(node)
    for attribute in proto.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and ir.DataType(attribute.i) in _FLOATS:
            attribute.i = onnx.TensorProto.DOUBLE
    outputs = [name for name in proto.output if name]
    read, computed = ([helper.make_empty_tensor_value_info(name) for name in names] for names in (inputs, outputs))
    opsets = [helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    calls_function = node.op_identifier() in model.functions
    functions = [serde.serialize_function(function) for function in model.functions.values()] if calls_function else []
    graph = helper.make_graph([proto], "one", read, computed)
    single = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    try:
        with np.errstate(all="ignore"):  # NumPy would warn of overflows, which are valid results
            feeds = {name: torch_to_array(tensor) for name, tensor in inputs.items()}
            results = ReferenceEvaluator(single).run(None, feeds)
    except Exception:  # noqa: BLE001  it raises NotImplementedError and whatever NumPy raises
        return {}
    pairs = zip(outputs, results, strict=True)
    arrays = ((name, value) for name, value in pairs if isinstance(value, np.ndarray | np.generic))
    return {name: array_to_torch(value, copy=False) for name, value in arrays}
