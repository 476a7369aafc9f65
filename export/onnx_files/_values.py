"""Refuse programs with a value that is far larger than all inputs and weights; a few bytes can require terabytes."""

import math

import onnx_ir as ir
from onnx import ModelProto, ValueInfoProto, inliner, shape_inference

from ._graphs import all_graphs
from ._ranks import check_ranks

_ALWAYS_ALLOWED = 2**31  # bytes of a value
_MAX_GROWTH = 64  # times all weights and inputs
_MAX_MODEL = 2**30  # bytes; larger models are not checked, because shape inference copies them


def check_values(model: ModelProto, weights: int) -> None:
    """Refuse a model with a value of more than 2 GiB that is more than 64 times all its weights and inputs.

    Args:
        model: the model, which is not changed. Large weights may be missing; small ones, which may be shapes, may not.
        weights: bytes of all its weights.

    Raises:
        ValueError: shape inference finds such a value, or a value has too many dimensions (see `check_ranks`).
    """
    if model.ByteSize() > _MAX_MODEL:
        return
    bare = _bare(model)
    if bare is None:
        return
    propagate = check_ranks(bare.graph, {entry.domain: entry.version for entry in bare.opset_import})
    try:
        inferred = shape_inference.infer_shapes(bare, data_prop=propagate)  # if all lengths of shapes are known
    except Exception:  # noqa: BLE001  the backend reports what is wrong with the model
        return
    total = weights + sum(map(_nbytes, model.graph.input))
    for value in (value for graph in all_graphs([inferred.graph]) for value in (*graph.value_info, *graph.output)):
        size = _nbytes(value)
        if size > _ALWAYS_ALLOWED and size > _MAX_GROWTH * total:
            raise ValueError(
                f"{value.name!r:.80} would take {size / 2**30:,.1f} GiB, "
                f"more than {_MAX_GROWTH} times all weights and inputs of the program"
            )


def _bare(model: ModelProto) -> ModelProto | None:
    """Return a copy of the model with its functions inlined and without declared shapes; None if inlining fails."""
    try:
        calls = len(model.functions)
        bare = inliner.inline_local_functions(model) if calls else ModelProto.FromString(model.SerializeToString())
    except Exception:  # noqa: BLE001  the backend reports what is wrong with the model
        return None
    for graph in all_graphs([bare.graph]):
        graph.ClearField("value_info")
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    return bare


def _nbytes(value: ValueInfoProto) -> int:
    """Return the smallest size of a value in bytes; unknown dimensions count as 1."""
    tensor = value.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value") and dim.dim_value >= 0]
    dtype = ir.DataType(tensor.elem_type)
    has_size = dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
    return int(math.prod(dims) * (dtype.itemsize if has_size else 1))
