"""Names of ONNX and PyTorch operators, and which of them move or select numbers, or jump."""


def operator_name(op: str) -> str:
    """Return the operator without domain and overload: `aten.mul.Tensor` becomes `mul`."""
    return op.split(".")[1] if op.startswith("aten.") else op.rpartition("::")[2]


def is_step(op: str) -> bool:
    """Return whether an operator returns numbers that are constant but for jumps, as those that round do."""
    return operator_name(op).removesuffix("_") in _STEPS or op.endswith((".Tensor_mode", ".Scalar_mode"))


_STEPS = frozenset(
    {
        *("Binarizer", "Ceil", "Floor", "Hardmax", "Round", "Sign", "TreeEnsemble", "TreeEnsembleClassifier"),
        *("TreeEnsembleRegressor", "ceil", "floor", "fix", "floor_divide", "heaviside", "round", "sgn"),
        *("sign", "trunc", "fake_quantize_per_channel_affine", "fake_quantize_per_tensor_affine"),
    }
)
# The results of these are some of the numbers that they read.
CHOICES = frozenset(
    {
        *("Clip", "Dropout", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "TopK", "Where"),
        *("amax", "amin", "clamp", "clamp_max", "clamp_min", "dropout", "masked_fill", "max_pool2d", "maximum"),
        *("minimum", "topk", "where"),
    }
)
MOVES = frozenset(
    {
        *("Cast", "CastLike", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("Identity", "Pad", "ReorderInput", "ReorderOutput", "Reshape", "ScatterElements", "ScatterND", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"),
        *("_to_copy", "alias", "cat", "chunk", "clone", "constant_pad_nd", "contiguous", "embedding", "expand"),
        *("flatten", "gather", "getitem", "index", "index_put", "index_select", "masked_scatter", "pad", "permute"),
        *("repeat", "reshape", "scatter", "select", "select_scatter", "slice", "slice_scatter", "split"),
        *("split_with_sizes", "squeeze", "stack", "t", "transpose", "tril", "triu", "unbind", "unsqueeze", "view"),
    }
)
