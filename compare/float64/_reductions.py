"""Determine how many numbers an operator sums for each output element."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from filch.export import Graph, Node
from filch.steal import Product

Shapes = Sequence[tuple[int, ...]]
ObservedShapes = Mapping[str, tuple[int, ...]]
TF32_UNIT = 2.0**-11  # half a unit in the last place, relative: TF32 has 10 mantissa bits, like float16


def reduction_length(node: Node, graph: Graph, observed: ObservedShapes = MappingProxyType({})) -> int:
    """Return the length of the longest sum in a node's operator; 1 if there is none or shapes are unknown.

    Args:
        node: a node of an exported graph or of a torch graph.
        graph: the graph.
        observed: the shapes in a run of values for which the graph declares none, by name.
    """
    count = _LENGTHS.get(node.op)
    if count is None:
        return 1
    inputs, outputs = ([_shape(graph, name, observed) for name in names] for names in (node.inputs, node.outputs[:1]))
    try:
        return max(1, int(count(node.attributes, [*inputs, *outputs])))
    except (IndexError, ValueError, ZeroDivisionError, TypeError):  # an unknown or omitted shape is ()
        return 1


def running_length(node: Node, graph: Graph, observed: ObservedShapes = MappingProxyType({})) -> int:
    """Return how many numbers a kernel may add sequentially, as in a reduction along an axis that is not the last.

    The rounding level grows with the square root of this length. Gradients of one sample often have one sign, and
    cancel with those of the next, so that partial sums, and with them the error, are twice as large as those of random
    numbers: the length is four times as large.
    """
    length = reduction_length(node, graph, observed)
    rank = len(_shape(graph, node.outputs[0], observed))
    if node.op == "convolution_backward" or (node.op == "gradient" and rank != 2):
        return 4 * length  # gradients of matrices are computed by matrix products, which add in blocks
    return length if node.op.startswith("Reduce") or node.op in _RUNNING else 1


_RUNNING = frozenset(
    {
        *("CumSum", "AveragePool", "GlobalAveragePool", "LpPool", "GlobalLpPool", "LpNormalization"),
        *("batch_norm", "cumsum"),
    }
)


def product_of(node: Node) -> Product | None:
    """Return the kind of product that a node computes, whose factors a GPU may round to TF32; None if it is none."""
    return _PRODUCTS.get(node.op.rpartition("::")[2])


_PRODUCTS: Mapping[str, Product] = {
    **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Einsum", "Attention"), Product.MATMUL),
    **dict.fromkeys(("Conv", "FusedConv", "ConvTranspose", "LSTM", "GRU", "RNN"), Product.CONVOLUTION),
}


def _shape(graph: Graph, name: str, observed: ObservedShapes) -> tuple[int, ...]:
    """Return the shape that a value has or is declared to have; () if it is not known."""
    if name in observed:
        return observed[name]
    value = graph.values.get(name)
    dims = () if value is None or value.shape is None else value.shape
    return tuple(dim for dim in dims if isinstance(dim, int)) if all(isinstance(dim, int) for dim in dims) else ()


# From the attributes of a node and the shapes of its inputs and first output to the length of its sums.
_LENGTHS: Mapping[str, Callable[[Mapping[str, Any], Shapes], float]] = {
    "MatMul": lambda _, shapes: shapes[0][-1],
    "Gemm": lambda attributes, shapes: shapes[0][0 if attributes.get("transA") else -1],
    # The size of the contracted dimensions; a shared batch dimension increases the estimate.
    "Einsum": lambda _, shapes: math.sqrt(math.prod(shapes[0]) * math.prod(shapes[1]) / math.prod(shapes[-1])),
    "Conv": lambda _, shapes: math.prod(shapes[1][1:]),
    "ConvTranspose": lambda _, shapes: math.prod(shapes[1]) / shapes[1][1],
    "Attention": lambda _, shapes: max(shapes[0][-1], shapes[1][-2]),
    "CumSum": lambda _, shapes: max(shapes[0]),  # the axis is an input of the node, so its value is unknown here
    **dict.fromkeys(("Softmax", "LogSoftmax"), lambda _, shapes: shapes[0][-1]),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization"),
        lambda attributes, shapes: math.prod(shapes[0][attributes.get("axis", -1) :]),
    ),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), lambda _, shapes: math.prod(shapes[0][1:])),
    **dict.fromkeys(
        (
            *("GlobalAveragePool", "AveragePool", "LpPool", "LpNormalization", "ReduceSum", "ReduceMean", "ReduceL1"),
            *("ReduceL2", "ReduceSumSquare", "ReduceProd", "ReduceLogSum", "ReduceLogSumExp"),
        ),
        lambda _, shapes: math.prod(shapes[0]) / math.prod(shapes[-1]),
    ),
    # Of PyTorch: functions and methods of a model, ATen operators, and the gradients of parameters.
    **dict.fromkeys(("bmm", "linear", "matmul", "mm"), lambda _, shapes: shapes[0][-1]),
    **dict.fromkeys(("addmm", "baddbmm"), lambda _, shapes: shapes[1][-1]),
    "einsum": lambda _, shapes: math.sqrt(math.prod(shapes[0]) * math.prod(shapes[1]) / math.prod(shapes[-1])),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), lambda _, shapes: math.prod(shapes[1][1:])),
    "convolution_backward": lambda _, shapes: max(math.prod(shape) / shape[1] for shape in (shapes[0], shapes[2])),
    **dict.fromkeys(
        (
            *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"),
            "_scaled_dot_product_flash_attention_for_cpu_backward",
        ),
        lambda _, shapes: max(shapes[0][-1], shapes[1][-2]),
    ),
    **dict.fromkeys(
        ("layer_norm", "log_softmax", "native_layer_norm", "rms_norm", "softmax"), lambda _, shapes: shapes[0][-1]
    ),
    **dict.fromkeys(("group_norm", "instance_norm"), lambda _, shapes: math.prod(shapes[0][1:])),
    "batch_norm": lambda _, shapes: math.prod(shapes[0]) / shapes[0][1],
    "cumsum": lambda _, shapes: max(shapes[0]),
    **dict.fromkeys(
        ("adaptive_avg_pool2d", "avg_pool2d", "cross_entropy", "logsumexp", "mse_loss"),
        lambda _, shapes: math.prod(shapes[0]) / math.prod(shapes[-1]),
    ),
    "gradient": lambda _, shapes: math.prod(shapes[0]) / shapes[-1][0],
    **dict.fromkeys(("LSTM", "GRU", "RNN"), lambda _, shapes: shapes[0][0] * (shapes[1][-1] + shapes[2][-1])),
}
