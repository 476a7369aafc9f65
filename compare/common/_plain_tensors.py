"""Dense tensors in place of the sparse, nested and quantized ones that PyTorch has, with the same numbers."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import UninitializedParameter

from filch.steal.files._budget import Budget
from filch.steal.files._kinds import budget_of

from ._errors import CompareError

# What repeats the numbers that are stored may be large; the limits are those for the values of an ONNX file.
_LARGE, _MOST_REPEATED = 2**31, 64  # bytes; times
_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)  # None: this PyTorch has no such dtype
_FLOAT4_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class PlainTensors:
    """Yields the tensors of nested containers as dense ones, and counts them.

    Args:
        budget: of the file that they come from; None for one that allows as much as a file of weights may have.
        stored: bytes of the file; infinite for those of a user's own program.
    """

    def __init__(self, budget: Budget | None = None, stored: float = math.inf) -> None:
        self._budget = budget or budget_of("weights")
        self._most = self._left = max(_LARGE, _MOST_REPEATED * stored)

    def of(self, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of a value by name; other things, such as the step of an optimizer, are left out.

        Args:
            value: a tensor, or a mapping, list or tuple of such values, whose names are joined with dots.

        Raises:
            LimitError: there are too many values, they are nested too deep, or have too many numbers.
            ValueError: a tensor has no numbers.
        """
        pending: list[tuple[str, Any, int]] = [("", value, 0)]
        while pending:
            name, item, depth = pending.pop()
            self._budget.take_items(what="values")
            self._budget.check_depth(depth)
            if isinstance(item, torch.Tensor):
                yield from self._plain(name, _quietly(item.detach))
            elif isinstance(item, Mapping | list | tuple):
                parts = item.items() if isinstance(item, Mapping) else enumerate(item)
                inner = [(f"{name}.{key}" if name else str(key), part, depth + 1) for key, part in parts]
                pending += reversed(inner)

    def _plain(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a tensor as a dense one; of a nested tensor, each of its rows, with the index added to the name."""
        if isinstance(tensor, UninitializedParameter) or tensor.is_meta:
            raise ValueError(f"{name!r} has no numbers: it is a tensor of the device meta, or was never initialized")
        if tensor.is_nested:
            for index, row in enumerate(_quietly(tensor.unbind)):
                yield from self._plain(f"{name}.{index}", row)
            return
        self._left -= tensor.numel() * tensor.element_size()
        if self._left < 0:
            raise ValueError(f"{name!r} and those before it have more than {self._most:,} bytes, which are not stored")
        yield name, _numbers(tensor)


def _quietly(function: Callable[[], Any]) -> Any:
    """Return what a function of torch returns, without its warnings of layouts that may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function()


def plain_tensors(value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of nested containers, such as a state dictionary, as dense ones by name.

    Raises:
        CompareError: one has no numbers.
    """
    try:
        return dict(PlainTensors().of(value))
    except ValueError as error:
        raise CompareError(f"the weights can't be compared: {error}") from error


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor of any layout; those of less than 16 bits as float32, in which torch computes."""
    if tensor.layout is not torch.strided:
        tensor = _quietly(tensor.to_dense)
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.dtype is _FLOAT4:
        return _float4(tensor)
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def _float4(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor of float4, two of which are in a byte, the first in its lower half."""
    codes = tensor.contiguous().view(torch.uint8)
    codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    return torch.tensor(_FLOAT4_NUMBERS)[codes.int()]
