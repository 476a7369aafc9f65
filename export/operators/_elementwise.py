"""Operators that compute each number from numbers at the same place, or draw it at random."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
import torch
from torch.nn import functional

from ._dtypes import converted, is_float
from ._operator import Decision, NodeCall, Operator, Tensor, UnsupportedError, by_name, of_torch, plain, variadic

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
        value = call.get(name) if limit is None else limit  # an attribute before version 11
        if value is not None:
            x = function(x, torch.as_tensor(value, dtype=x.dtype).reshape(()))
    return x


def _shift(call: NodeCall, x: Tensor, y: Tensor) -> Tensor:
    return x << y if call["direction"] == "LEFT" else x >> y


def _cast(call: NodeCall, x: Tensor) -> Tensor:
    return _convert(call, x, ir.DataType(call["to"]))


def _cast_like(call: NodeCall, x: Tensor, y: Tensor) -> Tensor:
    kind = call.dtype(1)
    if kind is None or is_float(kind):  # not declared, or evaluated in float64: `y` has the dtype
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
    """Return the numbers as they are, and a mask that keeps all of them: what dropout does in inference."""
    if training is not None and bool(training) and (ratio is None or float(ratio) != 0):
        raise UnsupportedError("dropout in training draws random numbers")
    mask = torch.ones_like(x, dtype=torch.bool)
    has_boolean_mask = call.version >= 10  # before operator set 10, the mask has the type of the input
    return x, mask if has_boolean_mask else mask.to(x.dtype)


def _biased_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return gelu(x if bias is None else x + bias)


def _fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return gelu(x if bias is None else x + bias, approximate="tanh")


def _split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    left, right = (x + bias).chunk(2, -1)
    return left * gelu(right)


def _functions(traits: Mapping[str, Any] = MappingProxyType({}), **functions: Callable[..., Tensor]) -> list[Operator]:
    """Return operators by their names, of which PyTorch calls those of one word alike."""
    return [Operator(name, plain(function), torch=name.lower(), **traits) for name, function in functions.items()]


_RELATIVE: dict[str, Any] = {"rounding": "relative"}
_COMPARISON = Decision("comparison")
_CONVERSION = Decision("conversion")
_INTEGERS = "bool byte char short int long"  # methods that convert to these
_FLOATS = "double float half bfloat16"

OPERATORS = (
    *_functions(
        Acos=torch.acos,
        Acosh=torch.acosh,
        Asin=torch.asin,
        Asinh=torch.asinh,
        Atan=torch.atan,
        Atanh=torch.atanh,
        Cos=torch.cos,
        Cosh=torch.cosh,
        IsNaN=torch.isnan,
        Log=torch.log,
        Mish=lambda x: x * torch.tanh(_softplus(x)),
        Sin=torch.sin,
        Sinh=torch.sinh,
        Softplus=_softplus,
        Softsign=functional.softsign,
        Tan=torch.tan,
        HardSwish=lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    ),
    *_functions(_RELATIVE, Abs=torch.abs, Erf=torch.erf, Neg=torch.neg, Reciprocal=torch.reciprocal, Sqrt=torch.sqrt),
    *_functions(_RELATIVE | {"activation": True}, Relu=torch.relu, Tanh=torch.tanh),
    Operator("Add", plain(torch.add), torch="add", rounding="addition", commutes=True, neutral=0),
    Operator("And", plain(torch.logical_and), torch="logical_and", commutes=True),
    Operator("BitCast", _bit_cast),
    Operator("BitShift", _shift),
    Operator("BitwiseAnd", plain(torch.bitwise_and), torch="bitwise_and", commutes=True),
    Operator("BitwiseNot", plain(torch.bitwise_not), torch="bitwise_not"),
    Operator("BitwiseOr", plain(torch.bitwise_or), torch="bitwise_or", commutes=True),
    Operator("BitwiseXor", plain(torch.bitwise_xor), torch="bitwise_xor", commutes=True),
    Operator(
        "Cast",
        _cast,
        torch=f"_to_copy convert_element_type to type type_as {_INTEGERS} {_FLOATS}",
        movement="cast",
        decision=_CONVERSION,
        dtype_attribute="to",
    ),
    Operator("CastLike", _cast_like, movement="cast", decision=_CONVERSION),
    Operator("Ceil", plain(torch.ceil), torch="ceil", jumps=True, decision=Decision("jump", 0.0)),
    Operator("Celu", _celu, torch="celu"),
    Operator("Clip", _clip, torch="clamp clip hardtanh relu6", chooses=True, activation=True),
    Operator("Div", plain(_divide), torch="div divide truediv true_divide", rounding="relative", neutral=1),
    Operator("Dropout", _dropout, torch="dropout native_dropout feature_dropout", chooses=True),
    Operator("Elu", _elu, torch="elu"),
    Operator("Equal", plain(torch.eq), torch="eq equal", decision=_COMPARISON, commutes=True),
    Operator("Exp", plain(torch.exp), torch="exp", rounding="exponential"),
    Operator("Floor", plain(torch.floor), torch="floor", jumps=True, decision=Decision("jump", 1.0)),
    Operator("Gelu", by_name(gelu), torch="gelu", added=torch.abs),
    Operator("Greater", plain(torch.gt), torch="gt greater", decision=_COMPARISON),
    Operator("GreaterOrEqual", plain(torch.ge), torch="ge greater_equal", decision=_COMPARISON),
    Operator(
        "HardSigmoid",
        lambda call, x: (x * call["alpha"] + call["beta"]).clamp(0, 1),
        torch="hardsigmoid",
        activation=True,
    ),
    Operator("IsInf", _is_infinite, torch="isinf"),
    Operator(
        "LeakyRelu",
        lambda call, x: torch.where(x < 0, call["alpha"] * x, x),
        torch="leaky_relu",
        rounding="relative",
        activation=True,
    ),
    Operator("Less", plain(torch.lt), torch="lt less", decision=_COMPARISON),
    Operator("LessOrEqual", plain(torch.le), torch="le less_equal", decision=_COMPARISON),
    Operator("Max", variadic(torch.maximum), torch="maximum", chooses=True, commutes=True, variadic=True),
    Operator("Mean", _mean, variadic=True),
    Operator("Min", variadic(torch.minimum), torch="minimum", chooses=True, commutes=True, variadic=True),
    Operator("Mod", _modulo),
    Operator("Mul", plain(torch.mul), torch="mul multiply", rounding="relative", commutes=True, neutral=1, weight=1),
    Operator("Not", plain(torch.logical_not), torch="logical_not"),
    Operator("Or", plain(torch.logical_or), torch="logical_or", commutes=True),
    Operator("PRelu", plain(_parametric), torch="prelu _prelu_kernel", rounding="relative"),
    Operator("Pow", plain(_power), torch="pow", rounding="exponential", exponent=1, neutral=1),
    Operator("Round", plain(torch.round), torch="round", jumps=True, decision=Decision("jump", 0.5)),
    Operator("Selu", _selu, torch="selu"),
    Operator("Shrink", _shrink),
    Operator(
        "Sigmoid",
        plain(torch.sigmoid),
        torch="sigmoid",
        rounding="exponential",
        activation=True,
        added=lambda x: torch.full_like(x, 0.5),
    ),
    Operator("Sign", plain(torch.sign), torch="sign sgn", jumps=True, decision=Decision("sign")),
    Operator("Sub", plain(torch.sub), torch="sub subtract", rounding="addition", neutral=0),
    Operator("Sum", variadic(torch.add), family="add", rounding="addition", commutes=True, variadic=True),
    Operator("SwiGLU", lambda call, gate, x: swish(gate, call["alpha"]) * x),
    Operator("Swish", lambda call, x: swish(x, call["alpha"]), torch="silu", rounding="exponential"),
    Operator(
        "ThresholdedRelu",
        lambda call, x: torch.where(x > call["alpha"], x, torch.zeros_like(x)),
        torch="threshold",
        rounding="relative",
    ),
    Operator("Where", plain(torch.where), torch="where masked_fill", chooses=True),
    Operator("Xor", plain(torch.logical_xor), torch="logical_xor", commutes=True),
    Operator("BiasGelu", plain(_biased_gelu), _MICROSOFT, added=torch.abs),
    Operator("BiasSplitGelu", plain(_split_gelu), _MICROSOFT),
    Operator("FastGelu", plain(_fast_gelu), _MICROSOFT, added=torch.abs),
    Operator("Gelu", plain(gelu), _MICROSOFT, added=torch.abs),
    Operator("QuickGelu", lambda call, x: swish(x, call.get("alpha", 1.702)), _MICROSOFT),
    of_torch("rsqrt", rounding="relative"),
    of_torch("rsub", family="sub", rounding="addition"),
    of_torch("square", family="pow", rounding="relative"),
    of_torch("clamp_max clamp_min fmax fmin", chooses=True),
    of_torch("fmod remainder mod"),
    of_torch("threshold_backward", chooses=True),
    of_torch("ne not_equal", decision=_COMPARISON),
    of_torch("fix trunc", jumps=True, decision=_CONVERSION),
    of_torch("floor_divide floordiv heaviside", jumps=True),
    # Random numbers.
    Operator("Bernoulli", torch="bernoulli", random=True, dtype_attribute="dtype"),
    Operator("Multinomial", torch="multinomial", random=True),
    Operator("RandomNormal", torch="normal randn", random=True, dtype_attribute="dtype"),
    Operator("RandomNormalLike", torch="randn_like", random=True, dtype_attribute="dtype"),
    Operator("RandomUniform", torch="rand uniform", random=True, dtype_attribute="dtype"),
    Operator("RandomUniformLike", torch="rand_like", random=True, dtype_attribute="dtype"),
    of_torch("cauchy exponential geometric gumbel_softmax log_normal poisson", random=True),
    of_torch("randint randint_like random randperm", random=True),
)
