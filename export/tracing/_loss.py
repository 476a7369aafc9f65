"""The default loss of a training step."""

from typing import Any

import torch

from filch.steal.private._torch import pytree


def sum_of_squares(result: Any) -> torch.Tensor:
    """Return `(result**2).sum()` over all floating-point tensors of a result, on the device of the first.

    Raises:
        ValueError: the result has no floating-point tensor.
    """
    tensors = [item for item in pytree.tree_leaves(result) if isinstance(item, torch.Tensor)]
    squares = [(item**2).sum() for item in tensors if item.is_floating_point()]
    if not squares:
        raise ValueError("it returns no floating-point tensor: give a loss")
    total = squares[0]
    for square in squares[1:]:
        total = total + square.to(total)
    return total
