"""Which operators of PyTorch and ONNX compute the same, and which operations are the same in all layers."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from filch.export import Graph, Node, split_call

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


def place_of(name: str) -> str:
    """Return a name without the numbers of layers, which is the same in all of them."""
    return re.sub(r"\d+", "#", name)


def code_of(node: Node) -> tuple[str, str | None]:
    """Return the module of an operation, in whichever of its calls, and its line."""
    return split_call(node.module or "")[0], node.source


def same_operations(graph: Graph) -> Mapping[str, Sequence[Node]]:
    """Return the same operations of all layers, or else of all calls of the same code, by the name of each one."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    calls: Counter[tuple[object, ...]] = Counter()
    keys: dict[str, tuple[tuple[object, ...], ...]] = {}
    for node in graph.nodes:
        calls[node.module, node.op, node.source] += 1
        code = node.op, node.source, calls[node.module, node.op, node.source]
        keys[node.name] = (place_of(node.module or ""), *code), code
        for key in keys[node.name]:
            groups.setdefault(key, []).append(node)
    return {name: next((groups[key] for key in own if len(groups[key]) > 1), []) for name, own in keys.items()}
