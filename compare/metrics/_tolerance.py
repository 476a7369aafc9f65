"""The largest difference with which two tensors count as close."""

import math
import sys
from dataclasses import dataclass
from typing import Literal

import torch

from filch.export import Graph, Node

from ..common._errors import CompareError


@dataclass(frozen=True)
class Tolerance:
    """The limits of the difference of two tensors; all have to hold.

    Attributes:
        harmonic: the largest `|actual - expected| / (|expected| + 1)` of an element. Far below 1 this is an absolute
            error, which would accept a relative error of 100 %; hence the other limits.
        scale: the largest `|actual - expected|` relative to the largest `|expected|` of the tensor. One large element
            would hide the errors of all others; hence the third limit.
        rms: the root mean square of `actual - expected` relative to that of `expected`; by default equal to `scale`.
    """

    harmonic: float
    scale: float
    rms: float = math.nan

    def __post_init__(self) -> None:
        if isinstance(self.rms, float) and math.isnan(self.rms):
            object.__setattr__(self, "rms", self.scale)
        for limit in (self.harmonic, self.scale, self.rms):
            if not (isinstance(limit, int | float) and 0 <= limit < math.inf):
                raise CompareError(f"a tolerance is a number from 0 on, not {limit!r}")


# The argument `tolerance` of `compare`: "default" is the tolerance of each dtype, None needs no tolerance.
ToleranceOption = float | Tolerance | Literal["default"] | None

_EXACT = Tolerance(0.0, 0.0)
# float32 and float16 are those of the hidet documentation; the others follow from their epsilons. bfloat16 has 8
# significant bits: 2 of 256 units in the last place. The scale limits are loose: they catch errors of a sizable part of
# the tensor's range, not rounding. The relative root mean square error of correct float16 models is up to 2e-3.
_DEFAULTS = {
    torch.float64: Tolerance(1e-10, 1e-6),
    torch.complex128: Tolerance(1e-10, 1e-6),
    torch.float32: Tolerance(1e-5, 1e-3),
    torch.complex64: Tolerance(1e-5, 1e-3),
    torch.float16: Tolerance(1e-2, 1e-1, 2e-2),
    torch.complex32: Tolerance(1e-2, 1e-1, 2e-2),
    torch.bfloat16: Tolerance(5e-2, 2e-1, 1e-1),
}
if (_bcomplex32 := getattr(torch, "bcomplex32", None)) is not None:  # since torch 2.14
    _DEFAULTS[_bcomplex32] = _DEFAULTS[torch.bfloat16]
# Quantization errors are relative to the range of the tensor, so the harmonic limit is none. Where one number is much
# larger than the others, these may vanish, so the rms limit is loose.
ANY_ERROR = sys.float_info.max
_EIGHT_BITS, _FOUR_BITS = Tolerance(ANY_ERROR, 1e-1, 5e-1), Tolerance(ANY_ERROR, 5e-1, 1.0)
# How accurately a product with a quantized weight reads the other operand, by its `accuracy_level`: float16, bfloat16,
# or int8, whose half a step is 1/254 of the largest number in a block.
_OPERAND_UNITS = {2: 2.0**-11, 3: 2.0**-8, 4: 2.0**-8}
_FLOAT8 = Tolerance(1.25e-1, 2.5e-1)  # two to three significant bits


def default_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance of a dtype: float32 1e-5, float16 1e-2, bfloat16 5e-2, float64 1e-10; integers are exact."""
    if dtype in _DEFAULTS:
        return _DEFAULTS[dtype]
    return _FLOAT8 if dtype.is_floating_point else _EXACT


def tolerance_for(dtype: torch.dtype, tolerance: "float | Tolerance | None") -> Tolerance:
    """Return the tolerance that a user's `tolerance=` gives for a dtype.

    None means the default of the dtype; a number is the harmonic limit of floating-point and complex dtypes, whose
    scale limit is then 100 times the number; exact dtypes, such as integers, stay exact.
    """
    default = default_tolerance(dtype)
    if tolerance is None:
        return default
    return default if default == _EXACT else as_tolerance(tolerance)


def as_tolerance(limit: float | Tolerance) -> Tolerance:
    """Return a number as a `Tolerance`: the harmonic limit; the scale limit is 100 times it."""
    return limit if isinstance(limit, Tolerance) else Tolerance(limit, 100 * limit)


def given_limits(tolerance: ToleranceOption) -> float | Tolerance | None:
    """Return the limits that a `tolerance` sets; None for those of each dtype.

    Raises:
        CompareError: it is another text than `"default"`.
    """
    if not isinstance(tolerance, str):
        return tolerance
    if tolerance != "default":
        raise CompareError(f"tolerance must be a number, a Tolerance or 'default', not {tolerance!r}")
    return None


def is_coarser(dtype: torch.dtype, than: torch.dtype) -> bool:
    """Return whether a floating-point dtype has fewer significant bits than another one."""
    both = dtype.is_floating_point and than.is_floating_point and torch.float4_e2m1fn_x2 not in (dtype, than)
    return both and torch.finfo(dtype).eps > torch.finfo(than).eps


def largest_of(dtype: torch.dtype) -> float:
    """Return the largest finite number of a floating-point dtype; inf for other dtypes and packed float4."""
    has_finfo = dtype.is_floating_point and dtype != torch.float4_e2m1fn_x2
    return torch.finfo(dtype).max if has_finfo else math.inf


def is_quantized(tolerance: float | Tolerance | None) -> bool:
    """Return whether a tolerance is of quantized values: their errors are relative to the quantization step."""
    return isinstance(tolerance, Tolerance) and tolerance.harmonic == ANY_ERROR


def operand_unit(node: Node) -> float:
    """Return the relative rounding unit of a node that reads its operand in a lower precision; 0 for other nodes."""
    level = int(node.attributes.get("accuracy_level", 0)) if node.operator.quantization == "weight" else 0
    return _OPERAND_UNITS.get(level, 0.0)


def quantized_tolerance(node: Node, graph: Graph, *, has_same_weight: bool = False) -> Tolerance | None:
    """Return the tolerance of a node that quantizes or dequantizes; None for other nodes.

    A product with a quantized weight that the reference has, too, is as accurate as its other operand.

    The error of an 8-bit value is up to 1/510 of its range, that of a 4-bit value up to 1/30; the tolerances allow some
    50 and 15 of these to add up. They are meant to find faults, not to judge whether a quantized model is usable.
    """
    dtypes = {
        graph.values[name].dtype for name in node.inputs[:1] if name in graph.values and name in graph.constant_values
    }
    operator = node.operator
    is_weight = operator.movement == "cast" and dtypes & {"int8", "uint8", "int4", "uint4"}  # as torchao dequantizes it
    if operator.quantization in ("", "integers") and not is_weight:
        return None
    if has_same_weight:
        return _DEFAULTS[torch.bfloat16] if operand_unit(node) else None
    four = dtypes & {"int4", "uint4"} or int(node.attributes.get("bits", 8)) <= 4
    return _FOUR_BITS if four else _EIGHT_BITS
