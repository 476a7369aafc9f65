"""How far two tensors may be apart and still count as the same."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from filch.export import Graph, Node

from ..common._errors import CompareError


@dataclass(frozen=True)
class Tolerance:
    """How far two tensors may be apart; all limits have to hold.

    Attributes:
        harmonic: the largest `|actual - expected| / (|expected| + 1)` of an element. For values far under 1 it is an
            absolute error, which would hide a mistake of 100 %: hence the others.
        scale: the largest `|actual - expected|` relative to the largest `|expected|` of the tensor. One large element
            would hide what all the others are off by: hence the third.
        rms: the root mean square of `actual - expected` relative to that of `expected`; by default as much as `scale`.
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


Limits = Mapping[str, float | Tolerance | None]  # by value names; None is the default of the value's dtype
_EXACT = Tolerance(0.0, 0.0)
# float32 and float16 are those of the hidet documentation; the others follow from their epsilons. bfloat16 has 8
# significant bits: 2 of 256 units in the last place. The scale limits are loose: they catch values that are off by a
# sizable part of their tensor's range, not rounding. The root mean square of what clean float16 models are off by is up
# to 2e-3 of their values'.
_DEFAULTS = {
    torch.float64: Tolerance(1e-10, 1e-6),
    torch.complex128: Tolerance(1e-10, 1e-6),
    torch.float32: Tolerance(1e-5, 1e-3),
    torch.complex64: Tolerance(1e-5, 1e-3),
    torch.float16: Tolerance(1e-2, 1e-1, 2e-2),
    torch.complex32: Tolerance(1e-2, 1e-1, 2e-2),
    torch.bfloat16: Tolerance(5e-2, 2e-1, 1e-1),
}
# An error of integers is a part of their scale's range, whatever the number: the first limit says nothing. Where one
# number is much larger than the others, these may be lost: the third says no more than that most of it is there.
ANY_ERROR = sys.float_info.max
_EIGHT_BITS, _FOUR_BITS = Tolerance(ANY_ERROR, 1e-1, 5e-1), Tolerance(ANY_ERROR, 5e-1, 1.0)
_INTEGERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "com.microsoft::MatMulNBits"})
_FLOAT8 = Tolerance(1.25e-1, 2.5e-1)  # two to three significant bits


def default_tolerance(dtype: torch.dtype) -> Tolerance:
    """The tolerance for a dtype: float32 1e-5, float16 1e-2, bfloat16 5e-2, float64 1e-10; integers, bool are exact."""
    if dtype in _DEFAULTS:
        return _DEFAULTS[dtype]
    return _FLOAT8 if dtype.is_floating_point else _EXACT


def tolerance_for(dtype: torch.dtype, given: "float | Tolerance | None") -> Tolerance:
    """What a user's `tolerance=` means for a dtype.

    None is the default, a number replaces the harmonic limit of floating-point and complex dtypes (their scale limit is
    then 100 times the number); integers stay exact.
    """
    default = default_tolerance(dtype)
    if given is None:
        return default
    return default if default == _EXACT else as_pair(given)


def as_pair(given: float | Tolerance) -> Tolerance:
    """What a number stands for."""
    return given if isinstance(given, Tolerance) else Tolerance(given, 100 * given)


def is_coarser(dtype: torch.dtype, than: torch.dtype) -> bool:
    """Whether a floating-point type has fewer significant bits than another one."""
    both = dtype.is_floating_point and than.is_floating_point and torch.float4_e2m1fn_x2 not in (dtype, than)
    return both and torch.finfo(dtype).eps > torch.finfo(than).eps


def largest_of(dtype: torch.dtype) -> float:
    """The largest finite number of a floating-point type; inf for what is none, which has no such limit here."""
    has_one = dtype.is_floating_point and dtype != torch.float4_e2m1fn_x2
    return torch.finfo(dtype).max if has_one else math.inf


def quantized_tolerance(node: Node, graph: Graph) -> Tolerance | None:
    """The tolerance of what a node makes that quantises, or makes numbers of integers; None if it does neither.

    A value of 8 bits is off by up to 1/510 of its range, one of 4 bits by 1/30; these let some 50 and 15 of them add
    up. They are for finding faults: whether a model is good enough is for its user to say.
    """
    held = {
        graph.values[name].dtype for name in node.inputs[:1] if name in graph.values and name in graph.constant_values
    }
    is_weight = node.op == "Cast" and bool(held & {"int8", "uint8", "int4", "uint4"})  # torchao's, dequantised
    if node.op not in _INTEGERS and not is_weight:
        return None
    four = held & {"int4", "uint4"} or int(node.attributes.get("bits", 8)) <= 4
    return _FOUR_BITS if four else _EIGHT_BITS
