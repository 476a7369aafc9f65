"""Compute operations on large weights block by block, so that no copy of a weight in float64 is made."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

_LARGE = 2**20  # bytes of a weight; smaller ones are converted whole
_BLOCK = 2**18  # elements, which fit in the processor's cache in float64
# Converts a value that a node reads, such as to float64. Its arguments are the name of the value, a tensor, and for a
# block of a weight the index of its first element in the flat weight; see `Interpreter`.
Read = Callable[[str, torch.Tensor, int | None], torch.Tensor]
Compute = Callable[[fx.Node, Mapping[fx.Node, Any], Read], torch.Tensor]  # takes a node and the values by node


def blockwise(node: fx.Node, env: Mapping[fx.Node, Any]) -> Compute | None:
    """Return the function that computes a node block by block; None if there is none, or its weight is small.

    Args:
        node: the node.
        env: the values of the nodes that it reads.
    """
    index, compute = _OPERATORS.get(node.target, (len(node.args), _linear))
    if len(node.args) <= index:  # another operator, or a call with keywords
        return None
    weight_node: Any = node.args[index]
    weight = env[weight_node]
    is_large = weight.nbytes >= _LARGE and weight.dim() > 1 and weight.is_contiguous()
    return compute if is_large else None


def _linear(node: fx.Node, env: Mapping[fx.Node, Any], read: Read) -> torch.Tensor:
    """Compute `aten.linear(input, weight, bias)`."""
    arguments: Any = node.args
    x_node, weight_node, *bias_nodes = arguments
    x, weight = read(x_node.name, env[x_node], None), env[weight_node]
    count, width = weight.shape
    result = x.new_empty(*x.shape[:-1], count)
    rows = max(1, _BLOCK // width)
    for start in range(0, count, rows):
        block = read(weight_node.name, weight[start : start + rows], start * width)
        result[..., start : start + rows] = x @ block.T
    for bias_node in bias_nodes:
        result = result if bias_node is None else result.add_(read(bias_node.name, env[bias_node], None))
    return result


def _embedding(node: fx.Node, env: Mapping[fx.Node, Any], read: Read) -> torch.Tensor:
    """Compute `aten.embedding(weight, indices, …)`; its other arguments concern gradients."""
    arguments: Any = node.args
    weight_node, indices_node = arguments[:2]
    weight, indices = env[weight_node], env[indices_node]
    width = weight.shape[1]
    used, positions = indices.unique(return_inverse=True)  # each row is read once
    if used.numel() and not 0 <= int(used[0]) <= int(used[-1]) < len(weight):
        raise IndexError(f"embedding indices are from 0 to {len(weight) - 1}, not {int(used[0])} to {int(used[-1])}")
    rows = [read(weight_node.name, weight[row], row * width) for row in used.tolist()]
    no_rows = read(weight_node.name, weight[:0], 0).new_empty(0, width)  # of the dtype that `read` returns
    return (torch.stack(rows) if rows else no_rows)[positions]


# The index of the weight among the arguments, and the function.
_OPERATORS: dict[Any, tuple[int, Compute]] = {
    torch.ops.aten.linear.default: (1, _linear),
    torch.ops.aten.embedding.default: (0, _embedding),
}
