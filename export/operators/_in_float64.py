"""Values in float64, and the operators of PyTorch that have no kernel for it, or another meaning of their arguments."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch


def in_float64(value: Any) -> Any:
    """Return a floating-point tensor in float64 and a complex one in complex128; anything else as it is.

    Args:
        value: a tensor, which is returned itself if it has this dtype, without gradients; or a list, of which each item
            is converted; or anything else.
    """
    if isinstance(value, list):
        return [*map(in_float64, value)]
    if not isinstance(value, torch.Tensor):
        return value
    value, dtype = value.detach() if value.requires_grad else value, float64_dtype(value.dtype)
    return value if value.dtype == dtype else value.to(dtype)  # conversions are calls, which a dispatch mode would see


def float64_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for a floating-point dtype, complex128 for a complex one, and any other dtype itself."""
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


def float64_operator(operator: Any) -> Any:
    """Return what computes an operator's results from tensors of float64, with its arguments: nearly always itself."""
    return _REPLACED.get(operator, operator)


def _grouped_mm(
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001  PyTorch refuses it
    out_dtype: torch.dtype | None = None,  # noqa: ARG001  float64
) -> torch.Tensor:
    """Return the product of each group of rows, columns or terms, which end at `offs`, with a matrix of its own."""
    if offs is None:
        return first @ second
    groups = [slice(*ends) for ends in pairwise([0, *offs.tolist()])]
    if first.dim() == second.dim():  # two matrices: groups of terms
        return torch.stack([first[:, group] @ second[group] for group in groups])
    result = first.new_zeros(first.shape[-2], second.shape[-1])
    for index, group in enumerate(groups):
        if first.dim() == 2:  # groups of rows, else of columns
            result[group] = first[group] @ second[index]
        else:
            result[:, group] = first[index] @ second[:, group]
    return result


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:  # noqa: ARG001, FBT001  of float16 alone
    return torch.softmax(x, dim)


def _log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:  # noqa: ARG001, FBT001  likewise
    return torch.log_softmax(x, dim)


def _fake_quantize(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int
) -> torch.Tensor:
    """Round to multiples of the scale of each channel, within limits."""
    return _fake_quantize_with_mask(x, scale, zero_point, axis, quant_min, quant_max)[0]


def _fake_quantize_with_mask(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same as `_fake_quantize`, and return whether each number is within the limits, too."""
    shape = [-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())]
    scale, zero_point = (item.to(x.dtype).reshape(shape) for item in (scale, zero_point))
    rounded = torch.round(x / scale) + zero_point
    limited = rounded.clamp(quant_min, quant_max)
    return (limited - zero_point) * scale, limited == rounded


_aten = torch.ops.aten
_REPLACED: Mapping[Any, Callable[..., Any]] = {
    _aten.fake_quantize_per_channel_affine.default: _fake_quantize,
    _aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize_with_mask,
    _aten._grouped_mm.default: _grouped_mm,  # noqa: SLF001
    _aten._softmax.default: _softmax,  # noqa: SLF001
    _aten._log_softmax.default: _log_softmax,  # noqa: SLF001
}
