"""Operators that add products: of matrices, and convolutions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from filch.steal._tf32 import Product

from ._elementwise import swish
from ._movement import padded
from ._operator import NodeCall, Operator, Tensor, Terms, UnsupportedError, along, by_name, of_torch, plain
from ._windows import halves, windows_of

_MICROSOFT = "com.microsoft"


def _gemm(call: NodeCall, x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    product = (x.T if call["transA"] else x) @ (y.T if call["transB"] else y)
    result = product if call["alpha"] == 1 else _scaled(product, call["alpha"])
    return result if bias is None else result + (bias if call["beta"] == 1 else _scaled(bias, call["beta"]))


def _scaled(x: Tensor, factor: float) -> Tensor:
    return (x * factor).to(x.dtype)  # integers stay integers


def _einsum(call: NodeCall, *inputs: Tensor) -> Tensor:
    return torch.einsum(call["equation"].replace(" ", ""), *inputs)


def convolved(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the convolution of a tensor; of more than three spatial dimensions, too."""
    windows = windows_of(call, x.shape[2:], weight.shape[2:])
    groups = call.get("group", 1)
    if weight.dim() - 2 not in _CONVOLUTIONS:
        raise UnsupportedError(f"a convolution of {weight.dim() - 2} dimensions")
    begin = list(windows.begin)
    if begin != list(windows.end):
        x, begin = padded(x, windows.begin, windows.end), [0] * len(begin)
    convolve = _CONVOLUTIONS[weight.dim() - 2]
    return convolve(x, weight, bias, tuple(windows.strides), begin, tuple(windows.dilations), groups)


def _transposed(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the full transposed convolution without its pads, which are cropped."""
    dims = weight.dim() - 2
    windows = windows_of(call, [1] * dims, weight.shape[2:])
    extra = call.get("output_padding") or [0] * dims
    full = [
        (size - 1) * stride + span + more
        for size, stride, span, more in zip(x.shape[2:], windows.strides, windows.spans, extra, strict=True)
    ]
    begin, end, auto = windows.begin, windows.end, call.get("auto_pad", "NOTSET")
    if call.get("output_shape") or auto.startswith("SAME"):
        same = [size * stride for size, stride in zip(x.shape[2:], windows.strides, strict=True)]
        wanted = (call.get("output_shape") or same)[-dims:]  # the spatial sizes alone
        total = [large - size for large, size in zip(full, wanted, strict=True)]
        # The specification gives the larger half to the begin, unless it is `SAME_UPPER`.
        begin, end = halves(total, "SAME_UPPER" if auto == "SAME_UPPER" else "SAME_LOWER")
    convolve = _TRANSPOSED[dims]
    result = convolve(x, weight, None, tuple(windows.strides), 0, 0, call.get("group", 1), tuple(windows.dilations))
    missing = [large - size for large, size in zip(full, result.shape[2:], strict=True)]  # of `output_padding`
    result = padded(result, [-item for item in begin], [more - item for more, item in zip(missing, end, strict=True)])
    return result if bias is None else result + along(result, 1, bias)


def _deformed(
    call: NodeCall,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return a convolution whose windows read between the numbers, at places that `offset` moves."""
    if x.dim() != 4:
        raise UnsupportedError(f"a deformable convolution of {x.dim() - 2} dimensions")
    windows, groups = windows_of(call, x.shape[2:], weight.shape[2:]), call["offset_group"]
    count, height, width = weight.shape[2] * weight.shape[3], *offset.shape[2:]
    base = _window_places(windows.strides, windows.dilations, windows.begin, weight.shape[2:], (height, width))
    places = base + offset.reshape(len(x), groups, count, 2, height, width)
    parts = x.reshape(len(x) * groups, -1, *x.shape[2:])
    read = _bilinear(parts, places.reshape(len(x) * groups, count, 2, height, width))
    if mask is not None:
        read = read * mask.reshape(len(x) * groups, 1, count, height, width)
    read = read.reshape(len(x), call["group"], -1, height, width)
    kernels = weight.reshape(call["group"], -1, read.shape[2])
    result = torch.einsum("ngkhw,gok->ngohw", read, kernels).flatten(1, 2)
    return result if bias is None else result + along(result, 1, bias)


def _window_places(strides: Any, dilations: Any, begin: Any, kernel: Any, sizes: tuple[int, int]) -> Tensor:
    """Return the row and column that each number of a window reads, as [numbers of a window, 2, height, width]."""
    axes = [
        torch.arange(size) * stride + (torch.arange(inner) * dilation)[:, None] - first
        for size, stride, inner, dilation, first in zip(sizes, strides, kernel, dilations, begin, strict=True)
    ]
    shape = (*kernel, *sizes)
    rows, columns = axes[0][:, None, :, None].expand(shape), axes[1][None, :, None, :].expand(shape)
    return torch.stack([rows, columns], 2).flatten(0, 1).double()


def _bilinear(x: Tensor, places: Tensor) -> Tensor:
    """Return what is at fractional places of an image; zero outside."""
    height, width = x.shape[2:]
    scaled = torch.stack([places[:, :, 1] * 2 / width, places[:, :, 0] * 2 / height], -1) + torch.tensor(
        [1 / width - 1, 1 / height - 1], dtype=x.dtype
    )
    read = functional.grid_sample(x, scaled.flatten(1, 2), "bilinear", "zeros", align_corners=False)
    return read.reshape(*x.shape[:2], *places.shape[1:2], *places.shape[3:])


def _causal(
    call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None, past: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return a convolution of each channel with what precedes, and the last inputs: the next `past`."""
    count = weight.shape[-1] - 1
    before = x.new_zeros(*x.shape[:2], count) if past is None else past
    joined = torch.cat([before, x], 2)
    result = functional.conv1d(joined, weight, bias, groups=x.shape[1])
    return swish(result) if call["activation"] in {"silu", "swish"} else result, joined[..., joined.shape[2] - count :]


def _fused_matmul(
    x: Tensor,
    y: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    operands = []
    for tensor, transposed, batch in ((x, transA, transBatchA), (y, transB, transBatchB)):
        moved = tensor.movedim(0, -2) if batch else tensor
        operands.append(moved.mT if transposed and moved.dim() > 1 else moved)
    return alpha * (operands[0] @ operands[1])


def _fused_gemm(
    x: Tensor,
    y: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    activation: str = "",
    **parameters: float,
) -> Tensor:
    product = alpha * ((x.T if transA else x) @ (y.T if transB else y))
    result = product if bias is None else product + beta * bias
    names = [name for name in ("activation_alpha", "activation_beta", "activation_gamma") if name in parameters]
    return _activated(result, activation, [parameters[name] for name in names])


def _fused_conv(
    call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None
) -> Tensor:
    result = convolved(call, x, weight, bias)
    summed = result if addend is None else result + addend
    return _activated(summed, call.get("activation", ""), call.get("activation_params", ()))


def _activated(x: Tensor, activation: str, parameters: Sequence[float]) -> Tensor:
    if activation not in _ACTIVATIONS:
        raise UnsupportedError(f"the activation {activation}")
    return _ACTIVATIONS[activation](x, *parameters)


def _channels_last(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Tensor) -> Tensor:
    addend = rest[0].movedim(-1, 1) if rest else None
    return _fused_conv(call, x.movedim(-1, 1), weight, bias, addend).movedim(1, -1)


_CONVOLUTIONS: dict[int, Any] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: dict[int, Any] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_ACTIVATIONS: dict[str, Any] = {
    "": lambda x: x,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "LeakyRelu": lambda x, alpha=0.01: functional.leaky_relu(x, alpha),
    "Clip": torch.clamp,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
}

_Shapes = Sequence[tuple[int, ...]]


# The lengths of sums, by the shapes of the inputs and of the first output (see `Operator.terms`).
def _last(_: object, shapes: _Shapes) -> float:
    return shapes[0][-1]


def _contracted(_: object, shapes: _Shapes) -> float:
    """Return the size of the contracted dimensions; a shared batch dimension increases the estimate."""
    return math.sqrt(math.prod(shapes[0]) * math.prod(shapes[1]) / math.prod(shapes[-1]))


def _kernel(_: object, shapes: _Shapes) -> float:
    return math.prod(shapes[1][1:])


def _summed_gradients(_: object, shapes: _Shapes) -> float:
    """Return the longer sum: of a weight's gradient over samples and places, or of the input's over a kernel."""
    return max(math.prod(shape) / shape[1] for shape in (shapes[0], shapes[2]))


def _samples(_: object, shapes: _Shapes) -> float:
    """Return over how many samples the gradient of a parameter is summed."""
    return math.prod(shapes[0]) / shapes[-1][0]


def _in_turns(terms: Terms) -> Terms:
    """Return four times the length of sums of gradients.

    Gradients of one sample often have one sign, and cancel with those of the next, so that partial sums, and with them
    the error, are twice as large as those of random numbers. The error grows with the square root of the length.
    """
    return lambda attributes, shapes: 4 * terms(attributes, shapes)


def _of_parameter(attributes: Mapping[str, Any], shapes: _Shapes) -> float:
    """Return 1 for the gradients of matrices, which are products."""
    return 1 if len(shapes[-1]) == 2 else _in_turns(_samples)(attributes, shapes)


_MATMUL: dict[str, Any] = {"family": "matmul", "product": Product.MATMUL, "weight": 1}
_CONVOLUTION: dict[str, Any] = {"family": "convolution", "product": Product.CONVOLUTION, "weight": 1}

OPERATORS = (
    Operator("CausalConvWithState", _causal),
    Operator("Conv", convolved, torch="conv1d conv2d conv3d convolution _convolution", terms=_kernel, **_CONVOLUTION),
    Operator(
        "ConvTranspose",
        _transposed,
        torch="conv_transpose1d conv_transpose2d conv_transpose3d",
        terms=lambda _, shapes: math.prod(shapes[1]) / shapes[1][1],
        product=Product.CONVOLUTION,
    ),
    Operator("DeformConv", _deformed, torch="deform_conv2d"),
    Operator("Det", plain(torch.linalg.det), torch="_linalg_det linalg_det det"),
    Operator("Einsum", _einsum, torch="einsum", terms=_contracted, product=Product.MATMUL),
    Operator(
        "Gemm",
        _gemm,
        terms=lambda attributes, shapes: shapes[0][0 if attributes.get("transA") else -1],
        **_MATMUL,
    ),
    Operator("MatMul", plain(torch.matmul), torch="bmm linear matmul mm", terms=_last, **_MATMUL),
    Operator("FusedConv", _fused_conv, _MICROSOFT, terms=_kernel, **_CONVOLUTION),
    Operator("FusedGemm", by_name(_fused_gemm), _MICROSOFT, **_MATMUL),
    Operator("FusedMatMul", by_name(_fused_matmul), _MICROSOFT, **_MATMUL),
    Operator("NhwcFusedConv", _channels_last, _MICROSOFT, product=Product.CONVOLUTION),
    Operator("TransposeMatMul", by_name(_fused_matmul), _MICROSOFT, product=Product.MATMUL),
    of_torch("addmm baddbmm", terms=lambda _, shapes: shapes[1][-1], **(_MATMUL | {"weight": 2})),
    of_torch("convolution_backward", terms=_summed_gradients, sequential=_in_turns(_summed_gradients)),
    of_torch("gradient", terms=_samples, sequential=_of_parameter),
)
