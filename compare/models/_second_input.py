"""Make a second input with other numbers, from which equal inputs of two implementations are still equal."""

import copy
from typing import Any

import torch

from filch.steal.private._torch import pytree

_FEW = 2  # different integers: a mask, whose numbers are kept


def other_numbers(arguments: Any) -> Any:
    """Return arguments with other numbers.

    Each number is replaced by one that depends on it alone, so that the arguments of another implementation, which have
    the same numbers in another layout, become the same again. Floating-point numbers are multiplied by 0.8 to 1.2.
    Integers are exchanged for each other, so that indices stay valid. Booleans, masks of integers and arguments that
    are no tensors are kept.

    Args:
        arguments: any nesting of containers; not changed.
    """
    copied = copy.deepcopy(arguments)
    return pytree.tree_map_only(torch.Tensor, _with_other_numbers, copied)


def _with_other_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with other numbers; see `other_numbers`."""
    if tensor.is_complex():
        size = torch.view_as_real(tensor).norm(dim=-1).double()
        return (tensor * _factors(size)).to(tensor.dtype)
    if tensor.is_floating_point():
        numbers = tensor.double()  # torch multiplies none of 8 bits
        return (numbers * _factors(numbers)).to(tensor.dtype)
    if tensor.dtype == torch.bool:
        return tensor
    values, places = torch.unique(tensor, return_inverse=True)
    ascending = torch.arange(tensor.numel(), device=tensor.device)
    ordered = tensor.reshape(-1).sort().values.long()  # torch compares no uint16 with int64
    is_range = tensor.numel() > 1 and torch.equal(ordered, ascending)
    if len(values) <= _FEW or (tensor.dim() and is_range):  # positions
        return tensor
    other: torch.Tensor = values.roll(1)[places]
    return other


def _factors(sizes: torch.Tensor) -> torch.Tensor:
    """Return a factor from 0.8 to 1.2 for each number, which is another one for numbers that are near to each other."""
    return 1 + 0.2 * torch.sin(1000 * sizes)
