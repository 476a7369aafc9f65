"""Determine how many numbers an operator sums for each output element."""

import math
from collections.abc import Callable, Mapping, Sequence

from filch.export import Graph, Node

Shape = tuple[int, ...]
Shapes = Sequence[Shape]


def reduction_length(node: Node, graph: Graph) -> int:
    """Return the length of the longest sum in a node's operator; 1 if there is none or shapes are unknown.

    Args:
        node: a node of an exported graph.
        graph: the exported graph.
    """
    count = _LENGTHS.get(node.op)
    if count is None:
        return 1
    inputs, outputs = ([_shape(graph, name) for name in names] for names in (node.inputs, node.outputs[:1]))
    try:
        return max(1, int(count(node.attributes, [*inputs, *outputs])))
    except (IndexError, ValueError, ZeroDivisionError, TypeError):  # an unknown or omitted shape is ()
        return 1


def running_length(node: Node, graph: Graph) -> int:
    """Return how many numbers a kernel may add sequentially, as in a reduction along an axis that is not the last."""
    return reduction_length(node, graph) if node.op.startswith("Reduce") or node.op in _RUNNING else 1


_RUNNING = frozenset({"CumSum", "AveragePool", "GlobalAveragePool", "LpPool", "GlobalLpPool", "LpNormalization"})


def is_product(node: Node) -> bool:
    """Return whether a node is a matrix product or convolution, whose factors GPU tensor cores may round."""
    return node.op in _PRODUCTS


_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "LSTM", "GRU", "RNN"})


def _shape(graph: Graph, name: str) -> Shape:
    value = graph.values.get(name)
    dims = () if value is None or value.shape is None else value.shape
    return tuple(dim for dim in dims if isinstance(dim, int)) if all(isinstance(dim, int) for dim in dims) else ()


Length = Callable[[Mapping[str, object], Shapes], float]


def _last(_: Mapping[str, object], shapes: Shapes) -> float:
    return shapes[0][-1]


def _longest(_: Mapping[str, object], shapes: Shapes) -> float:
    """The axis is an input of the node, so its value is unknown here."""
    return max(shapes[0])


def _gemm(attributes: Mapping[str, object], shapes: Shapes) -> float:
    return shapes[0][0 if attributes.get("transA") else -1]


def _kernel(_: Mapping[str, object], shapes: Shapes) -> float:
    return math.prod(shapes[1][1:])


def _transposed_kernel(_: Mapping[str, object], shapes: Shapes) -> float:
    return math.prod(shapes[1]) / shapes[1][1]


def _reduced(_: Mapping[str, object], shapes: Shapes) -> float:
    return math.prod(shapes[0]) / math.prod(shapes[-1])


def _normalized(attributes: Mapping[str, object], shapes: Shapes) -> float:
    axis = attributes.get("axis", -1)
    return math.prod(shapes[0][axis:]) if isinstance(axis, int) else shapes[0][-1]


def _of_channels(_: Mapping[str, object], shapes: Shapes) -> float:
    return math.prod(shapes[0][1:])


def _contracted(_: Mapping[str, object], shapes: Shapes) -> float:
    """The size of the contracted dimensions; a shared batch dimension increases the estimate."""
    return math.sqrt(math.prod(shapes[0]) * math.prod(shapes[1]) / math.prod(shapes[-1]))


def _recurrent(_: Mapping[str, object], shapes: Shapes) -> float:
    return shapes[0][0] * (shapes[1][-1] + shapes[2][-1])


def _attended(_: Mapping[str, object], shapes: Shapes) -> float:
    return max(shapes[0][-1], shapes[1][-2])


_LENGTHS: Mapping[str, Length] = {
    "MatMul": _last,
    "Gemm": _gemm,
    "Einsum": _contracted,
    "Conv": _kernel,
    "ConvTranspose": _transposed_kernel,
    "Attention": _attended,
    "CumSum": _longest,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _last),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalized),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), _of_channels),
    **dict.fromkeys(("GlobalAveragePool", "AveragePool", "LpPool", "LpNormalization"), _reduced),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd"), _reduced),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp"), _reduced),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
