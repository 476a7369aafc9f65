"""The loss of a training step for which none was said."""

from typing import Any

import torch
from torch.utils import _pytree as pytree


def sum_of_squares(result: Any) -> torch.Tensor:
    """`(result**2).sum()` over all floating-point tensors that a model returned, on the device of the first.

    Raises:
        ValueError: there is none.
    """
    tensors = [item for item in pytree.tree_leaves(result) if isinstance(item, torch.Tensor)]
    squares = [(item**2).sum() for item in tensors if item.is_floating_point()]
    if not squares:
        raise ValueError("it returns no floating-point tensor: give a loss")
    total = squares[0]
    for square in squares[1:]:
        total = total + square.to(total)
    return total
