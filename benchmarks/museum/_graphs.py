"""`Graph`: build a small ONNX model node by node, with a name for each node and value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Graph:
    """An ONNX model that is built node by node; values are passed by their names.

    Args:
        opset: the version of the standard operators.
        microsoft: whether it has operators of `com.microsoft`.
        ir_version: of the file.
    """

    def __init__(self, opset: int = 18, *, microsoft: bool = False, ir_version: int = 10) -> None:
        self._opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid("com.microsoft", 1)] * microsoft
        self._ir_version = ir_version
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: Any = np.float32) -> str:
        """Add an input, and return its name."""
        self._inputs.append(helper.make_tensor_value_info(name, _type(dtype), shape))
        return name

    def constant(self, name: str, value: Any) -> str:
        """Add an initializer, an array or a TensorProto, and return its name."""
        tensor = value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value))
        tensor.name = name
        self._constants.append(tensor)
        return name

    def node(self, op: str, *inputs: str, name: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node, and return the name of its output, or the names of several."""
        names = [f"{name}_out"] if outputs == 1 else [f"{name}_out{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(op, [*inputs], names, name=name, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def output(self, value: str, dtype: Any = np.float32, shape: Sequence[int | str] | None = None) -> None:
        """Make a value an output."""
        self._outputs.append(helper.make_tensor_value_info(value, _type(dtype), shape))

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        graph = helper.make_graph(self._nodes, "museum", self._inputs, self._outputs, self._constants)
        model = helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)
        inferred = {item.name: item for item in onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output}
        for value in model.graph.output:  # the checker asks for a shape
            if not value.type.tensor_type.HasField("shape") and value.name in inferred:
                value.CopyFrom(inferred[value.name])
        return model


def _type(dtype: Any) -> int:
    """Return the type of ONNX: of a dtype of NumPy, or the type itself."""
    return dtype if isinstance(dtype, int) else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
