"""Refuses a program with a value out of all proportion to what it is given: a few bytes can ask for terabytes."""

import math
from collections.abc import Iterator

import onnx_ir as ir
from onnx import GraphProto, ModelProto, ValueInfoProto, inliner, shape_inference

from ._ranks import check_ranks

_LEAST = 2**31  # bytes of a value that is always too much for no reason
_MOST_GROWN = 64  # times all weights and inputs
_LARGEST = 2**30  # bytes of a model that is looked into: shape inference copies it


def check_values(model: ModelProto, weights: int) -> None:
    """Refuse a model with a value of more than 2 GiB that is more than 64 times all its weights and inputs.

    Args:
        model: its weights may be elsewhere, but for the small ones, which may be shapes. It is not changed.
        weights: bytes of all its weights.

    Raises:
        ValueError: it has one, as far as shape inference can tell; or one with too many dimensions (see `check_ranks`).
    """
    if model.ByteSize() > _LARGEST:
        return
    bare = _bare(model)
    if bare is None:
        return
    follows = check_ranks(bare.graph)
    try:
        inferred = shape_inference.infer_shapes(bare, data_prop=follows)
    except Exception:  # noqa: BLE001  what can't be inferred is not known; the backend says what is wrong with it
        return
    given = weights + sum(map(_nbytes, model.graph.input))
    for value in _values(inferred.graph):
        size = _nbytes(value)
        if size > _LEAST and size > _MOST_GROWN * given:
            raise ValueError(
                f"{value.name!r:.80} would take {size / 2**30:,.1f} GiB, "
                f"more than {_MOST_GROWN} times all weights and inputs of the program"
            )


def _bare(model: ModelProto) -> ModelProto | None:
    """The model with its functions' nodes in place of their calls, and without the shapes that it says itself.

    None if that can't be had.
    """
    try:
        called = len(model.functions)
        bare = inliner.inline_local_functions(model) if called else ModelProto.FromString(model.SerializeToString())
    except Exception:  # noqa: BLE001  the backend says what is wrong with it
        return None
    for graph in _graphs(bare.graph):
        graph.ClearField("value_info")
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    return bare


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                yield from _graphs(inner)


def _values(graph: GraphProto) -> Iterator[ValueInfoProto]:
    for inner in _graphs(graph):
        yield from inner.value_info
        yield from inner.output


def _nbytes(value: ValueInfoProto) -> int:
    """How many bytes a value takes at least: a dimension that is not known is 1."""
    tensor = value.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
    kind = ir.DataType(tensor.elem_type)
    known = kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
    return int(math.prod(dims) * (kind.itemsize if known else 1))
