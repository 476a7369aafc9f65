"""The sizes in bytes of a graph's values."""

import math
from collections.abc import Mapping

import torch

from ._graph import Graph
from ._nodes import Dim

_DEFAULT = 4  # bytes of an element whose dtype torch does not have


def value_sizes(graph: Graph, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the size in bytes of each input and each node's output, by name.

    Symbolic dimensions get the sizes that they have in the inputs. A value of unknown shape is assumed to be as large
    as the largest value that its node reads.

    Args:
        graph: the graph.
        inputs: its inputs, by name.
    """
    dims = {
        dim: size
        for name, tensor in inputs.items()
        if name in graph.values
        for dim, size in zip(graph.values[name].shape or (), tensor.shape, strict=False)
        if isinstance(dim, str)
    }
    sizes = {name: tensor.nbytes for name, tensor in inputs.items()}
    for node in graph.nodes:
        read = max((sizes.get(name, 0) for name in node.reads), default=0)
        for name in node.outputs:
            value = graph.values.get(name)
            shape = None if value is None or value.shape is None else [_size(dim, dims) for dim in value.shape]
            if shape is None or value is None or None in shape:
                sizes[name] = read
            else:
                sizes[name] = math.prod(size or 0 for size in shape) * _width(value.dtype)  # no size is None here
    return sizes


def _size(dim: Dim, dims: Mapping[str, int]) -> int | None:
    """Return the size of a dimension; None if it is not known, or its symbol is in no input."""
    return dim if isinstance(dim, int) else dims.get(dim or "")


def _width(dtype: str | None) -> int:
    known = getattr(torch, dtype or "", None)
    return known.itemsize if isinstance(known, torch.dtype) else _DEFAULT
