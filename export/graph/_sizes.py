"""How many bytes the values of a graph take."""

import math
from collections.abc import Mapping

import torch

from ._graph import Graph
from ._nodes import Dim

_BYTES = {"float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16, "float16": 2, "bfloat16": 2}
_USUAL = 4


def value_sizes(graph: Graph, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The bytes of each value that a node makes, by name.

    Named dimensions are those of the inputs. Where a shape is not known, a node is taken to make as much as it reads.

    Args:
        graph: the graph.
        inputs: what it is given, by name.
    """
    dims = {
        dim: size
        for name, tensor in inputs.items()
        if name in graph.values
        for dim, size in zip(graph.values[name].shape or (), tensor.shape, strict=False)
        if isinstance(dim, str)
    }
    found = {name: tensor.nbytes for name, tensor in inputs.items()}
    for node in graph.nodes:
        read = max((found.get(name, 0) for name in node.reads), default=0)
        for name in node.outputs:
            value = graph.values.get(name)
            shape = None if value is None or value.shape is None else [_size(dim, dims) for dim in value.shape]
            if shape is None or value is None or None in shape:
                found[name] = read
            else:
                found[name] = math.prod(size or 0 for size in shape) * _width(value.dtype)
    return found


def _size(dim: Dim, dims: Mapping[str, int]) -> int | None:
    return dim if isinstance(dim, int) else dims.get(dim or "")


def _width(dtype: str | None) -> int:
    narrow = dtype is not None and (dtype == "bool" or dtype.endswith("int8") or dtype.startswith("float8"))
    return 1 if narrow else _BYTES.get(dtype or "", _USUAL)
