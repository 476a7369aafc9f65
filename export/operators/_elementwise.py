"""Operators that compute each number from numbers at the same place."""

import math
from collections.abc import Callable

import onnx_ir as ir
import torch
from torch.nn import functional

from ._dtypes import converted, is_float
from ._operator import NodeCall, Operator, Tensor, UnsupportedError, by_name, plain, variadic

_MICROSOFT = "com.microsoft"


def _mean(_: NodeCall, *inputs: Tensor) -> Tensor:
    return sum(inputs[1:], inputs[0]) / len(inputs)


def _divide(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _modulo(call: NodeCall, x: Tensor, y: Tensor) -> Tensor:
    return torch.fmod(x, y) if call["fmod"] else torch.remainder(x, y)


def _power(x: Tensor, y: Tensor) -> Tensor:
    if x.is_floating_point() or y.is_floating_point():
        return torch.pow(x.double(), y.double()).to(x.dtype)
    return torch.pow(x, y.to(x.dtype))


def _clip(call: NodeCall, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    for limit, function in ((low, torch.maximum), (high, torch.minimum)):
        name = "min" if function is torch.maximum else "max"
        value = call.get(name) if limit is None else limit
        if value is not None:
            x = function(x, torch.as_tensor(value, dtype=x.dtype).reshape(()))
    return x


def _shift(call: NodeCall, x: Tensor, y: Tensor) -> Tensor:
    return x << y if call["direction"] == "LEFT" else x >> y


def _cast(call: NodeCall, x: Tensor) -> Tensor:
    return _convert(call, x, ir.DataType(call["to"]))


def _cast_like(call: NodeCall, x: Tensor, y: Tensor) -> Tensor:
    kind = call.dtype(1)
    if kind is None or is_float(kind):
        return x.to(y.dtype)
    return _convert(call, x, kind)


def _convert(call: NodeCall, x: Tensor, kind: ir.DataType) -> Tensor:
    return converted(x, kind, saturate=bool(call.get("saturate", 1)), round_mode=call.get("round_mode", "up"))


def _bit_cast(call: NodeCall, x: Tensor) -> Tensor:
    kind = ir.DataType(call["to"])
    if x.is_floating_point() or is_float(kind):
        raise UnsupportedError("the bits of a float64 value are not those of the run")
    return x.view(getattr(torch, kind.name.lower()))


def _is_infinite(call: NodeCall, x: Tensor) -> Tensor:
    positive, negative = (bool(call.get(f"detect_{sign}", 1)) for sign in ("positive", "negative"))
    return (torch.isposinf(x) & positive) | (torch.isneginf(x) & negative)


def _parametric(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _selu(call: NodeCall, x: Tensor) -> Tensor:
    return call["gamma"] * torch.where(x > 0, x, call["alpha"] * torch.expm1(x.clamp(max=0)))


def _celu(call: NodeCall, x: Tensor) -> Tensor:
    alpha = call["alpha"]
    return x.clamp(min=0) + (alpha * torch.expm1(x / alpha)).clamp(max=0)


def _elu(call: NodeCall, x: Tensor) -> Tensor:
    return torch.where(x > 0, x, call["alpha"] * torch.expm1(x.clamp(max=0)))


def _shrink(call: NodeCall, x: Tensor) -> Tensor:
    bias, limit = call["bias"], call["lambd"]
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, torch.zeros_like(x)))


def _softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)); torch's own returns x above 20."""
    return torch.logaddexp(x, torch.zeros_like(x))


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Return x * Phi(x), for large negative numbers, too, where 1 + erf(x) would cancel (as in torch's own)."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return x * torch.sigmoid(2 * inner)  # (1 + tanh(a)) / 2 is sigmoid(2 a)
    return x * torch.special.erfc(-x / math.sqrt(2)) / 2


def swish(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x * sigmoid(alpha * x)."""
    return x * torch.sigmoid(alpha * x)


def _dropout(
    call: NodeCall, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> tuple[Tensor, ...]:
    if training is not None and bool(training) and (ratio is None or float(ratio) != 0):
        raise UnsupportedError("dropout in training draws random numbers")
    mask = torch.ones_like(x, dtype=torch.bool)
    return x, mask if call.version > 7 else mask.to(x.dtype)


def _biased_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return gelu(x if bias is None else x + bias)


def _fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return gelu(x if bias is None else x + bias, approximate="tanh")


def _split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    left, right = (x + bias).chunk(2, -1)
    return left * gelu(right)


def _functions(**functions: Callable[..., Tensor]) -> tuple[Operator, ...]:
    return tuple(Operator(name, plain(function)) for name, function in functions.items())


OPERATORS = (
    *_functions(
        Abs=torch.abs,
        Acos=torch.acos,
        Acosh=torch.acosh,
        Add=torch.add,
        And=torch.logical_and,
        Asin=torch.asin,
        Asinh=torch.asinh,
        Atan=torch.atan,
        Atanh=torch.atanh,
        BitwiseAnd=torch.bitwise_and,
        BitwiseNot=torch.bitwise_not,
        BitwiseOr=torch.bitwise_or,
        BitwiseXor=torch.bitwise_xor,
        Ceil=torch.ceil,
        Cos=torch.cos,
        Cosh=torch.cosh,
        Div=_divide,
        Equal=torch.eq,
        Erf=torch.erf,
        Exp=torch.exp,
        Floor=torch.floor,
        Greater=torch.gt,
        GreaterOrEqual=torch.ge,
        IsNaN=torch.isnan,
        Less=torch.lt,
        LessOrEqual=torch.le,
        Log=torch.log,
        Mish=lambda x: x * torch.tanh(_softplus(x)),
        Mul=torch.mul,
        Neg=torch.neg,
        Not=torch.logical_not,
        Or=torch.logical_or,
        PRelu=_parametric,
        Pow=_power,
        Reciprocal=torch.reciprocal,
        Relu=torch.relu,
        Round=torch.round,
        Sign=torch.sign,
        Sin=torch.sin,
        Sinh=torch.sinh,
        Softplus=_softplus,
        Softsign=functional.softsign,
        Sqrt=torch.sqrt,
        Sub=torch.sub,
        Tan=torch.tan,
        Tanh=torch.tanh,
        Where=torch.where,
        Xor=torch.logical_xor,
        HardSwish=lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    ),
    Operator("BitCast", _bit_cast),
    Operator("BitShift", _shift),
    Operator("Cast", _cast),
    Operator("CastLike", _cast_like),
    Operator("Celu", _celu),
    Operator("Clip", _clip),
    Operator("Dropout", _dropout),
    Operator("Elu", _elu),
    Operator("Gelu", by_name(gelu), added=torch.abs),
    Operator("HardSigmoid", lambda call, x: (x * call["alpha"] + call["beta"]).clamp(0, 1)),
    Operator("IsInf", _is_infinite),
    Operator("LeakyRelu", lambda call, x: torch.where(x < 0, call["alpha"] * x, x)),
    Operator("Max", variadic(torch.maximum)),
    Operator("Mean", _mean),
    Operator("Min", variadic(torch.minimum)),
    Operator("Mod", _modulo),
    Operator("Selu", _selu),
    Operator("Shrink", _shrink),
    Operator("Sigmoid", plain(torch.sigmoid), added=lambda x: torch.full_like(x, 0.5)),
    Operator("Sum", variadic(torch.add)),
    Operator("SwiGLU", lambda call, gate, x: swish(gate, call["alpha"]) * x),
    Operator("Swish", lambda call, x: swish(x, call["alpha"])),
    Operator("ThresholdedRelu", lambda call, x: torch.where(x > call["alpha"], x, torch.zeros_like(x))),
    Operator("BiasGelu", plain(_biased_gelu), _MICROSOFT, added=torch.abs),
    Operator("BiasSplitGelu", plain(_split_gelu), _MICROSOFT),
    Operator("FastGelu", plain(_fast_gelu), _MICROSOFT, added=torch.abs),
    Operator("Gelu", plain(gelu), _MICROSOFT, added=torch.abs),
    Operator("QuickGelu", lambda call, x: swish(x, call.get("alpha", 1.702)), _MICROSOFT),
)
