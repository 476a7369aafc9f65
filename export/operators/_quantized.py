"""Operators on quantized numbers, and what converts to and from them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from ._dtypes import rounded
from ._operator import Compute, NodeCall, Operator, Tensor, UnsupportedError, along, of_torch
from ._product import convolved

_MICROSOFT = "com.microsoft"
_UINT8 = ir.DataType.UINT8


def _spread(x: Tensor, values: Tensor, axis: int, block: int) -> Tensor:
    """Return scales or zero points such that there is one for each number: of an axis, or of blocks along it."""
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return along(x, axis, values) if values.numel() > 1 else values.reshape(())


def _kind(dtype: torch.dtype) -> ir.DataType:
    return ir.DataType[str(dtype).removeprefix("torch.").upper()]


def _kind_of(call: NodeCall, index: int, tensor: Tensor | None) -> ir.DataType:
    """Return the dtype of an input: the declared one, as 4 bits take a byte, or that of its numbers, or else uint8."""
    declared = call.dtype(index)
    if declared is not None:
        return declared
    if tensor is None:
        return _UINT8
    if tensor.is_floating_point():
        raise UnsupportedError("a zero point of 8 bits whose dtype the file does not declare")
    return _kind(tensor.dtype)


def quantized(x: Tensor, scale: Tensor, zero: Tensor | None, kind: ir.DataType, *, saturate: bool = True) -> Tensor:
    """Return numbers in units of `scale` as integers or short floating-point numbers of a dtype."""
    return _rounded_steps(x / scale, zero, kind, saturate=saturate)


def _rounded_steps(steps: Tensor, zero: Tensor | None, kind: ir.DataType, *, saturate: bool = True) -> Tensor:
    """Return numbers in units of a scale as a dtype; integers after adding the zero point."""
    if not kind.is_integer():
        return rounded(steps, kind, saturate=saturate)
    return rounded(steps.round() + (0 if zero is None else zero.to(steps.dtype)), kind)


def _float32_steps(x: Tensor, scale: Tensor) -> Tensor:
    """Return numbers in units of `scale`, as defined: in float32, whose rounding decides near the middle of a step."""
    return (x.float() / scale.float()).double()


def _dequantized(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    wide = x.to(torch.float64)
    return (wide if zero is None else wide - zero.to(torch.float64)) * scale


def _quantize(call: NodeCall, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    given = call.get("output_dtype") if zero is None else None
    kind = ir.DataType(given) if given else _kind_of(call, 2, zero)
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    scales = _spread(x, scale, axis, block)
    zeros = None if zero is None or not kind.is_integer() else _spread(x, zero, axis, block)
    return _rounded_steps(_float32_steps(x, scales), zeros, kind, saturate=bool(call.get("saturate", 1)))


def _dequantize(call: NodeCall, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    zeros = None if zero is None else _spread(x, zero, axis, block)
    return _dequantized(x, _spread(x, scale, axis, block), zeros)


def _quantize_to_range(_: NodeCall, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return numbers as uint8, with their scale and zero point, for the range from the least to the largest and 0."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    if low == high:  # zeros alone: the scale is not defined, and 1 in ONNX Runtime
        high = low + 255
    step = (high.float() - low.float()) / 255
    zero = _float32_steps(-low, step).round().clamp(0, 255)
    scale = (high - low) / 255  # in float64, as a value; `step` only decides the integers, as the runtime does
    return _rounded_steps(_float32_steps(x, step), zero, _UINT8), scale, zero.to(torch.uint8)


def _shifted(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Return integers less their zero points, one or one per index of `axis`, in float64, exact up to 2 ** 53."""
    wide = x.to(torch.float64)
    if zero is None:
        return wide
    zeros = zero.to(torch.float64)
    if zeros.dim() == 1 and len(zeros) > 1:
        zeros = along(wide, axis, zeros)
    return wide - (zeros if zeros.dim() > 1 else zeros.reshape(()))


def _wrapped(x: Tensor) -> Tensor:
    """Return whole numbers as int32; those that do not fit lose their leading bits."""
    return x.to(torch.int64).to(torch.int32)


def _integer_matmul(
    _: NodeCall, x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None
) -> Tensor:
    return _wrapped(_shifted(x, x_zero, -2) @ _shifted(y, y_zero, -1))


def _integer_conv(
    call: NodeCall, x: Tensor, weight: Tensor, x_zero: Tensor | None = None, weight_zero: Tensor | None = None
) -> Tensor:
    return _wrapped(convolved(call, _shifted(x, x_zero, 1), _shifted(weight, weight_zero, 0)))


def _quantized_matmul(
    call: NodeCall,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
) -> Tensor:
    left = _shifted(x, x_zero, -2) * _as_factor(x_scale, x.dim(), -2)
    right = _shifted(y, y_zero, -1) * _as_factor(y_scale, y.dim(), -1)
    return quantized(left @ right, scale, zero, _kind_of(call, 7, zero))


def _as_factor(scale: Tensor, dims: int, axis: int) -> Tensor:
    """Return scales as factors along an axis of a tensor of `dims` dimensions; a single one as it is."""
    shape = [1] * dims
    shape[axis] = -1
    return scale.reshape(shape) if scale.dim() == 1 and scale.numel() > 1 else scale


def _quantized_conv(
    call: NodeCall,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    total = convolved(call, _shifted(x, x_zero, 1), _shifted(weight, weight_zero, 0))
    total = total if bias is None else total + along(total, 1, bias.to(torch.float64))  # in units of both scales
    steps = total * x_scale * (along(total, 1, weight_scale) if weight_scale.numel() > 1 else weight_scale)
    return quantized(steps, scale, zero, _kind_of(call, 7, zero))


def _quantized_gemm(
    call: NodeCall,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    zero: Tensor | None = None,
) -> Tensor:
    left = _shifted(x.T, x_zero, 0) if call.get("transA") else _shifted(x, x_zero, 0)
    right = _shifted(y.T if call.get("transB") else y, y_zero, 1)
    total = left @ right
    total = call.get("alpha", 1.0) * total + (0 if bias is None else bias)
    steps = total * x_scale * y_scale
    return steps if scale is None else quantized(steps, scale, zero, _kind_of(call, 8, zero))


def _scaled_matmul(
    _: NodeCall,
    x: Tensor,
    y: Tensor,
    x_scale: Tensor,
    y_scale: Tensor,
    x_zero: Tensor | None = None,
    y_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the product of integers times their scales, as a floating-point number."""
    result = (_shifted(x, x_zero, -2) @ _shifted(y, y_zero, -1)) * x_scale * y_scale
    return result if bias is None else result + bias


def _ranging_matmul(
    call: NodeCall, x: Tensor, y: Tensor, y_scale: Tensor, y_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    values, scale, zero = _quantize_to_range(call, x)
    return _scaled_matmul(call, values, y, scale, y_scale, zero, y_zero, bias)


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Compute:
    """Return what adds or multiplies two quantized tensors: `inputs` are each one's numbers, scale and zero point."""

    def compute(call: NodeCall, *inputs: Tensor) -> Tensor:
        x, x_scale, x_zero, y, y_scale, y_zero, scale, *rest = inputs
        zero = rest[0] if rest else None
        result = function(_dequantized(x, x_scale, x_zero), _dequantized(y, y_scale, y_zero))
        return quantized(result, scale, zero, _kind_of(call, 7, zero if zero is not None else x))

    return compute


def _unary(function: Callable[[NodeCall, Tensor], Tensor]) -> Compute:
    """Return what computes a function of quantized numbers, and quantizes the results with another scale."""

    def compute(
        call: NodeCall, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None
    ) -> Tensor:
        result = function(call, _dequantized(x, x_scale, x_zero))
        return quantized(result, scale, zero, _kind_of(call, 4, x if zero is None else zero))

    return compute


def _quantized_mean(call: NodeCall, x: Tensor) -> Tensor:
    return x.mean([*range(1, x.dim() - 1)] if call.get("channels_last") else [*range(2, x.dim())], keepdim=True)


def _leaky(call: NodeCall, x: Tensor) -> Tensor:
    return torch.where(x < 0, call.get("alpha", 0.01) * x, x)


def _joined(call: NodeCall, scale: Tensor, zero: Tensor, *parts: Tensor) -> Tensor:
    """Return the concatenation of numbers, each followed by its scale and zero point among `parts`."""
    triples: Sequence[Any] = [parts[index : index + 3] for index in range(0, len(parts), 3)]
    return quantized(
        torch.cat([_dequantized(*item) for item in triples], call["axis"]), scale, zero, _kind_of(call, 1, zero)
    )


def _block_matmul(
    call: NodeCall,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the product with a weight of few bits, which has a scale and a zero point for each block of a column."""
    rows, columns, block, bits = call["K"], call["N"], call["block_size"], call.get("bits", 4)
    if order is not None:
        raise UnsupportedError("groups in another order")
    blocks = -(-rows // block)
    values = _unpacked(packed.reshape(columns * blocks, -1), bits)[:, :block].reshape(columns, blocks, block)
    if zeros is None:
        shifts: Tensor | int = 2 ** (bits - 1)  # the default zero point
    elif zeros.is_floating_point():
        shifts = zeros.reshape(columns, blocks, 1)
    else:
        shifts = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks].reshape(columns, blocks, 1)
    weight = ((values - shifts) * scales.reshape(columns, blocks, 1)).flatten(1)[:, :rows]
    result = x @ weight.T
    return result if bias is None else result + bias


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Return the numbers that each byte of the last dimension has, those of the lowest bits first."""
    shifts = torch.arange(0, 8, bits)
    return ((packed[..., None].long() >> shifts) & (2**bits - 1)).flatten(-2).double()


# Operators on integers that have no values in float64.
_UNEVALUATED = (
    *("MulInteger", "QLinearAveragePool", "QLinearConvTranspose", "QLinearReduceMean", "QLinearSoftmax"),
    *("QLinearWhere", "ReduceSumInteger"),
)
_DEQUANTIZES: Mapping[str, Any] = {"quantization": "dequantize"}
_STORES_INTEGERS: Mapping[str, Any] = {"quantization": "integers"}

OPERATORS = (
    Operator("ConvInteger", _integer_conv, **_STORES_INTEGERS),
    Operator("DequantizeLinear", _dequantize, torch="dequantize_per_tensor dequantize_per_channel", **_DEQUANTIZES),
    Operator("DynamicQuantizeLinear", _quantize_to_range, quantization="quantize"),
    Operator("MatMulInteger", _integer_matmul, **_STORES_INTEGERS),
    Operator("QLinearConv", _quantized_conv, **_STORES_INTEGERS),
    Operator("QLinearMatMul", _quantized_matmul, **_STORES_INTEGERS),
    Operator("QuantizeLinear", _quantize, torch="quantize_per_tensor quantize_per_channel", quantization="quantize"),
    Operator("DequantizeLinear", _dequantize, _MICROSOFT, **_DEQUANTIZES),
    Operator("DynamicQuantizeMatMul", _ranging_matmul, _MICROSOFT),
    Operator("GatherBlockQuantized", None, _MICROSOFT, quantization="weight"),
    Operator("MatMulIntegerToFloat", _scaled_matmul, _MICROSOFT),
    Operator("MatMulNBits", _block_matmul, _MICROSOFT, quantization="weight"),
    Operator("QGemm", _quantized_gemm, _MICROSOFT, **_STORES_INTEGERS),
    Operator("QLinearAdd", _binary(torch.add), _MICROSOFT, **_STORES_INTEGERS),
    Operator("QLinearConcat", _joined, _MICROSOFT, **_STORES_INTEGERS),
    Operator("QLinearGlobalAveragePool", _unary(_quantized_mean), _MICROSOFT, **_STORES_INTEGERS),
    Operator("QLinearLeakyRelu", _unary(_leaky), _MICROSOFT, **_STORES_INTEGERS),
    Operator("QLinearMul", _binary(torch.mul), _MICROSOFT, **_STORES_INTEGERS),
    Operator("QLinearSigmoid", _unary(lambda _, x: torch.sigmoid(x)), _MICROSOFT, **_STORES_INTEGERS),
    Operator("QuantizeLinear", _quantize, _MICROSOFT, quantization="quantize"),
    *(Operator(name, None, _MICROSOFT, **_STORES_INTEGERS) for name in _UNEVALUATED),
    of_torch("fake_quantize_per_channel_affine fake_quantize_per_tensor_affine", jumps=True),
    of_torch("fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask", jumps=True),
)
