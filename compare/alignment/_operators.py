"""Which operators of PyTorch and ONNX compute the same."""

from filch.export import Node

from ..common._operators import operator_name

# Equal families compute the same from the same operands, up to the settings of a node.
_FAMILIES = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "linear", "MatMul", "Gemm", "matmul", "FusedMatMul"), "matmul"),
    **dict.fromkeys(("_softmax", "_safe_softmax", "Softmax", "softmax"), "softmax"),
    **dict.fromkeys(("_log_softmax", "LogSoftmax"), "log_softmax"),
    **dict.fromkeys(("_native_batch_norm_legit_no_training", "native_batch_norm", "BatchNormalization"), "batch_norm"),
    **dict.fromkeys(("native_layer_norm", "LayerNormalization", "layer_norm"), "layer_norm"),
    **dict.fromkeys(("rms_norm", "_fused_rms_norm", "SimplifiedLayerNormalization", "RMSNormalization"), "rms_norm"),
    **dict.fromkeys(("convolution", "Conv", "conv1d", "conv2d", "_convolution", "FusedConv"), "convolution"),
    **dict.fromkeys(("embedding", "Gather", "index_select"), "embedding"),
    **dict.fromkeys(("square", "pow", "Pow"), "pow"),
    **dict.fromkeys(("reciprocal", "Reciprocal"), "reciprocal"),
    **dict.fromkeys(("where", "Where", "masked_fill"), "where"),
    **dict.fromkeys(("mean", "ReduceMean"), "mean"),
    **dict.fromkeys(("sum", "ReduceSum"), "sum"),
    **dict.fromkeys(("sub", "rsub", "Sub"), "sub"),
    **dict.fromkeys(("cat", "Concat"), "cat"),
    **dict.fromkeys(("amax", "max", "ReduceMax"), "amax"),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool2d", "MaxPool"), "max_pool2d"),
}
# Operators that read a weight and data, so that a weight tells which operators correspond.
ANCHORS = frozenset({"matmul", "convolution", "layer_norm", "rms_norm", "batch_norm", "mul", "embedding"})

PRODUCTS = frozenset({"convolution", "matmul"})  # a convolution with a kernel of size 1 is a product
SUMS = frozenset({"add", "sub"})


def family(node: Node) -> str:
    """Return a name that is the same for all operators that compute the same."""
    name = operator_name(node.op).removesuffix("_")
    return _FAMILIES.get(name, name.lower())
