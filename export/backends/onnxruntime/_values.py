"""Convert between torch's tensors and ONNX Runtime's values."""

from collections.abc import Mapping

import onnx
import onnxruntime as ort
import torch
from torch.utils import dlpack


def is_plain(value: ort.OrtValue) -> bool:
    """Return whether torch has such values: tensors, but not of strings."""
    return bool(value.is_tensor()) and value.data_type() != "tensor(string)"


def to_ort(tensor: torch.Tensor) -> ort.OrtValue:
    plain = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().contiguous().cpu()
    if plain.dtype in (torch.bfloat16, *_FLOAT8):
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            plain.view(_BITS[plain.itemsize]).numpy(), _ONNX_TYPES[plain.dtype]
        )
    return ort.OrtValue.ortvalue_from_numpy(plain.numpy())


def to_torch(value: ort.OrtValue) -> torch.Tensor:
    """Convert a value to a tensor, which shares its memory if torch has the dtype."""
    kind = value.element_type()
    if kind in _TYPES:
        raw = dlpack.from_dlpack(value._ortvalue.to_dlpack())  # noqa: SLF001  the public class has no way to these bits
        return raw if raw.dtype == _TYPES[kind] else raw.view(_TYPES[kind])
    return torch.from_numpy(value.numpy().copy())


_BITS = {1: torch.uint8, 2: torch.int16}
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_ONNX_TYPES = {
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.float8_e4m3fn: onnx.TensorProto.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: onnx.TensorProto.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: onnx.TensorProto.FLOAT8E5M2,
    torch.float8_e5m2fnuz: onnx.TensorProto.FLOAT8E5M2FNUZ,
}
_TYPES: Mapping[int, torch.dtype] = {
    **{onnx_type: dtype for dtype, onnx_type in _ONNX_TYPES.items()},
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.BOOL: torch.bool,
}
