"""The size of a model's weights."""

import onnx_ir as ir


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of the weights of a model, in memory or in other files; without those of its subgraphs."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
