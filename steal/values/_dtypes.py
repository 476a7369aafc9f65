"""The ONNX data type that stores each torch dtype, bit for bit."""

from dataclasses import dataclass

import torch
from onnx import TensorProto
from torch import nn

from ..private._torch import is_functorch_wrapped_tensor


@dataclass(frozen=True)
class Carrier:
    """How an ONNX file stores a torch dtype.

    Attributes:
        onnx_type: the `TensorProto.DataType` written to the file.
        view: the torch dtype that the bytes are viewed as. If its items are smaller than those of the stored dtype,
            the tensor has one more dimension at the end (complex numbers become pairs of reals).
        short: how `describe` writes the dtype (`f32`).
        opset: the oldest one of at least 13 whose `Constant` has the ONNX type.
    """

    onnx_type: int
    view: torch.dtype
    short: str
    opset: int = 13


def _carriers() -> dict[torch.dtype, Carrier]:
    """Return the carriers of all dtypes that this torch has."""
    names = {
        "float32": ("FLOAT", "f32"), "float64": ("DOUBLE", "f64"), "float16": ("FLOAT16", "f16"),
        "bfloat16": ("BFLOAT16", "bf16"), "int8": ("INT8", "i8"), "int16": ("INT16", "i16"), "int32": ("INT32", "i32"),
        "int64": ("INT64", "i64"), "uint8": ("UINT8", "u8"), "uint16": ("UINT16", "u16"), "uint32": ("UINT32", "u32"),
        "uint64": ("UINT64", "u64"), "bool": ("BOOL", "bool"), "float8_e4m3fn": ("FLOAT8E4M3FN", "f8e4m3fn"),
        "float8_e4m3fnuz": ("FLOAT8E4M3FNUZ", "f8e4m3fnuz"), "float8_e5m2": ("FLOAT8E5M2", "f8e5m2"),
        "float8_e5m2fnuz": ("FLOAT8E5M2FNUZ", "f8e5m2fnuz"), "float8_e8m0fnu": ("FLOAT8E8M0", "f8e8m0fnu"),
    }  # fmt: skip
    carriers = {
        getattr(torch, name): Carrier(getattr(TensorProto, onnx_name), getattr(torch, name), short, _opset(onnx_name))
        for name, (onnx_name, short) in names.items()
    }
    # ONNX has complex types, but no runtime loads them as constants. Pairs of reals are readable everywhere.
    carriers[torch.complex64] = Carrier(TensorProto.FLOAT, torch.float32, "c64")
    carriers[torch.complex128] = Carrier(TensorProto.DOUBLE, torch.float64, "c128")
    carriers[torch.complex32] = Carrier(TensorProto.FLOAT16, torch.float16, "c32")
    if (bcomplex32 := getattr(torch, "bcomplex32", None)) is not None:  # since torch 2.14
        carriers[bcomplex32] = Carrier(TensorProto.BFLOAT16, torch.bfloat16, "bc32")
    # torch packs two float4 in a byte and its shape counts bytes; ONNX's shape counts numbers. Store the raw bytes.
    carriers[torch.float4_e2m1fn_x2] = Carrier(TensorProto.UINT8, torch.uint8, "f4e2m1x2")
    return carriers


def _opset(onnx_type: str) -> int:
    """Return the oldest version of ONNX's operators, of at least 13, whose `Constant` has a type of this name."""
    return 24 if onnx_type == "FLOAT8E8M0" else 19 if onnx_type.startswith("FLOAT8") else 13


CARRIERS = _carriers()
COMPLEX_HALVES = frozenset(dtype for dtype in CARRIERS if dtype.is_complex and dtype.itemsize == 4)
# Dtypes that torch can't even copy, and the dtypes as which their bytes are stored.
OPAQUE_DTYPES = {
    getattr(torch, name): torch.uint16 if name == "bits16" else torch.uint8
    for name in (
        *("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
        *(f"{sign}int{size}" for sign in ("", "u") for size in range(1, 8)),
    )
    if hasattr(torch, name)
}
is_functorch_wrapped = is_functorch_wrapped_tensor
_PLAIN_CLASSES = {torch.Tensor, nn.Parameter}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without `torch.`, such as `"float32"`."""
    return str(dtype).removeprefix("torch.")


_BY_NAME = {dtype_name(dtype): dtype for dtype in CARRIERS}


def dtype_of(name: str) -> torch.dtype | None:
    """Return the dtype of this name, such as `torch.float32` for `"float32"`; None if dumps can't store it."""
    return _BY_NAME.get(name)


def dtype_and_shape(tensor: torch.Tensor, *, with_shape: bool = True) -> str:
    """Return dtype and shape as `f32[2, 30]`, or dtype and rank as `f32[r2]`.

    A nested tensor is `f32[nested]`, a lazy parameter `f32[?]`.
    """
    dtype = CARRIERS[tensor.dtype].short if tensor.dtype in CARRIERS else dtype_name(tensor.dtype)
    if tensor.is_nested:
        return f"{dtype}[nested]"
    if nn.parameter.is_lazy(tensor):
        return f"{dtype}[?]"
    return f"{dtype}[{', '.join(map(str, tensor.shape))}]" if with_shape else f"{dtype}[r{tensor.dim()}]"


def reason_not_storable(tensor: torch.Tensor) -> str | None:
    """Return the reason why a tensor's data can't be stored, or None if it can."""
    if (  # the fast path, for nearly every tensor
        type(tensor) in _PLAIN_CLASSES
        and tensor.dtype in CARRIERS
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_nested)
        and not is_functorch_wrapped(tensor)
        and not _is_freed(tensor)
    ):
        return None
    return _check_storable(tensor)


def is_storable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's data can be stored."""
    return reason_not_storable(tensor) is None


def _check_storable(tensor: torch.Tensor) -> str | None:
    """Return what `reason_not_storable` returns, without the fast path."""
    if nn.parameter.is_lazy(tensor):
        return "it is not initialized"
    if tensor.is_meta or type(tensor).__name__ in {"FakeTensor", "FunctionalTensor"}:
        return "it has no data"
    if is_functorch_wrapped(tensor):
        return "it is inside a transformation of torch.func"
    if tensor.is_nested:
        return "it is nested"
    if tensor.layout != torch.strided:
        return f"its layout is {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_quantized:
        return "it is quantized"
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # DTensor, torchao's  # pyright: ignore[reportAttributeAccessIssue]
        return f"its class, {type(tensor).__name__}, stores its data in its own way"
    if tensor.dtype not in CARRIERS:
        return f"ONNX has no data type that stores {dtype_name(tensor.dtype)}"
    return "there is no memory behind it" if _is_freed(tensor) else None


def _is_freed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory was freed, as FSDP does with parameters: reading it would crash the process."""
    try:
        return tensor.data_ptr() == 0 and tensor.numel() > 0
    except RuntimeError:  # a device whose tensors have no address
        return False


def from_carrier(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a view with dtype `dtype` of a tensor that stores its bits (see `Carrier`)."""
    if dtype.is_complex:
        return tensor.view(dtype).squeeze(-1)  # `view_as_complex` does not take bfloat16
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
