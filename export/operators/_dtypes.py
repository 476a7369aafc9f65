"""Conversions between dtypes, in which all floating-point numbers but the shortest are float64."""

import math

import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters

from ._operator import Tensor, UnsupportedError

_WIDE = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_BITS = {ir.DataType.INT4: 4, ir.DataType.UINT4: 4, ir.DataType.INT2: 2, ir.DataType.UINT2: 2}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the magnitudes of FLOAT4E2M1


def is_float(kind: ir.DataType | None) -> bool:
    """Return whether a dtype has floating-point numbers that are evaluated in float64."""
    return kind in _WIDE


def converted(x: Tensor, kind: ir.DataType, *, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """Convert numbers as `Cast` does; those of a floating-point dtype of 16 bits and more stay float64.

    Args:
        x: the numbers.
        kind: the dtype.
        saturate: whether numbers out of the range of a dtype of 8 bits become the largest one.
        round_mode: `"up"`, `"down"` or `"nearest"`: how to round to powers of two.
    """
    if kind == ir.DataType.FLOAT8E8M0:
        return _power_of_two(x.double(), round_mode)
    if kind in _WIDE:
        return x.to(torch.float64)
    if kind in _BITS:
        low, high = limits(kind)
        return ((x.to(torch.int64) - low) % (high - low + 1) + low).to(storage(kind))
    if kind == ir.DataType.FLOAT4E2M1 or "FLOAT8" in kind.name:
        return rounded(x.double(), kind, saturate=saturate)
    return x.to(storage(kind))


def rounded(x: Tensor, kind: ir.DataType, *, saturate: bool = True) -> Tensor:
    """Round float64 numbers to a dtype of 4 or 8 bits, half to even; integers are limited to its range."""
    if kind == ir.DataType.FLOAT4E2M1:
        return _nearest_e2m1(x)
    dtype = storage(kind)
    if not dtype.is_floating_point:
        return x.round().clamp(*limits(kind)).to(dtype)
    most = torch.finfo(dtype).max
    result = x.clamp(-most, most).to(dtype).to(torch.float64)
    if saturate:
        return result
    # Half the distance from the largest number to the next one, if there were one.
    half_step = 2.0 ** (math.frexp(most)[1] - 2) * torch.finfo(dtype).eps
    lost = torch.inf if kind == ir.DataType.FLOAT8E5M2 else torch.nan  # the others have no infinity
    return torch.where(x.abs() > most + half_step, torch.copysign(torch.tensor(lost, dtype=x.dtype), x), result)


def limits(kind: ir.DataType) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer dtype."""
    if kind in _BITS:
        bits = _BITS[kind]
        return (0, 2**bits - 1) if kind.name.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    info = torch.iinfo(storage(kind))
    return info.min, info.max


def storage(kind: ir.DataType) -> torch.dtype:
    """Return the dtype in which torch has such numbers; those of 4 and 2 bits take a byte each."""
    if kind in _BITS:
        return torch.uint8 if kind.name.startswith("U") else torch.int8
    try:
        return tensor_adapters.to_torch_dtype(kind)
    except (TypeError, KeyError, ValueError):
        raise UnsupportedError(f"torch has no {kind.name}") from None


def _power_of_two(x: Tensor, round_mode: str) -> Tensor:
    """Round positive numbers to FLOAT8E8M0, the powers of two from 2 ** -127 to 2 ** 127, and NaN."""
    fraction, exponent = torch.frexp(x)  # the fraction is at least 1/2 and less than 1
    least = {"up": 0.5, "nearest": 0.75, "down": 1.0}[round_mode]
    is_up = fraction > least if round_mode == "up" else fraction >= least
    least_exponent = torch.where(x == 0, -127, exponent - 1 + is_up.int())
    power = torch.exp2(least_exponent.clamp(-127, 127).double())
    return torch.where(x.isfinite(), power, torch.nan)


def _nearest_e2m1(x: Tensor) -> Tensor:
    """Round to the nearest number of FLOAT4E2M1, half to the one of even index, which has an even mantissa."""
    levels = torch.tensor(_E2M1, dtype=torch.float64)
    size = x.abs().clamp(max=_E2M1[-1])
    above = torch.searchsorted(levels, size.contiguous()).clamp(max=len(_E2M1) - 1)
    below = (above - 1).clamp(min=0)
    middle = (levels[below] + levels[above]) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    return torch.where(x.isnan(), x, torch.copysign(levels[torch.where(up, above, below)], x))
