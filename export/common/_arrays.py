"""Convert between torch tensors and NumPy arrays, including dtypes that NumPy has by `ml_dtypes`."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters


def torch_to_array(tensor: torch.Tensor) -> np.ndarray:
    """Convert a tensor to an array, without a copy if possible."""
    return tensor_adapters.TorchTensor(tensor.detach().contiguous()).numpy()


def array_to_torch(array: np.ndarray | np.generic, *, copy: bool = True) -> torch.Tensor:
    """Convert an array to a tensor.

    Args:
        array: the array, of any layout and byte order. Numbers of 4 and 2 bits become integers of 8 bits, those of
            float4 float32.
        copy: whether to copy its memory; it is copied anyway if torch has no tensors of this kind.
    """
    array = np.asarray(array)
    if array.dtype.name in _WITHOUT_ARITHMETIC:
        array = array.astype(_WITHOUT_ARITHMETIC[array.dtype.name])
    # Torch has no negative strides and no other byte order, and warns of memory that is not writable.
    native = array.dtype.isnative and array.flags.writeable and all(stride >= 0 for stride in array.strides)
    if copy or not native:
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return _shared(array)


def comparable(value: object) -> torch.Tensor | None:
    """Return a tensor that equals another one if and only if the values that they stand for do.

    Args:
        value: an array of numbers, which is the tensor; one of strings, in place of which are their hashes (int64); or
            a list of such values, whose tensors become one with a new first dimension. Floating-point tensors of
            several shapes are filled up with NaN.

    Returns:
        the tensor; None for other values, and for lists of tensors of several dtypes or ranks, or of several shapes if
        they have integers or NaN.
    """
    if isinstance(value, list):
        elements = [tensor for item in value if (tensor := comparable(item)) is not None]
        return _stacked(elements) if len(elements) == len(value) else None
    if not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.asarray(value)
    return _hashes(array) if array.dtype.kind in "OSTU" else array_to_torch(array)  # objects, bytes and text


def _stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return tensors as one with a new first dimension; None if they can't be (see `comparable`)."""
    if not tensors:
        return torch.empty(0)
    if len({(tensor.dtype, tensor.ndim) for tensor in tensors}) > 1:
        return None
    shapes = {tensor.shape for tensor in tensors}
    if len(shapes) == 1:
        return torch.stack([*tensors])
    if not tensors[0].is_floating_point() or any(bool(tensor.isnan().any()) for tensor in tensors):
        return None
    sizes = [max(dims) for dims in zip(*shapes, strict=True)]
    result = tensors[0].new_full((len(tensors), *sizes), math.nan)
    for row, tensor in zip(result, tensors, strict=True):
        row[tuple(map(slice, tensor.shape))] = tensor
    return result


def _hashes(strings: np.ndarray) -> torch.Tensor:
    """Return a hash of each string."""
    items = [str(item).encode() for item in strings.reshape(-1)]
    numbers = [int.from_bytes(hashlib.blake2b(item, digest_size=8).digest(), "little", signed=True) for item in items]
    return torch.tensor(numbers, dtype=torch.int64).reshape(strings.shape)


def weight_to_torch(weight: ir.TensorProtocol) -> torch.Tensor:
    """Convert a weight to a tensor, which must not be changed: it shares the weight's memory if possible."""
    if isinstance(weight, tensor_adapters.TorchTensor):
        return weight.raw.detach()
    return array_to_torch(weight.numpy(), copy=False)


def _shared(array: np.ndarray) -> torch.Tensor:
    """Convert an array to a tensor that shares its memory."""
    if array.dtype.isbuiltin != _BY_ML_DTYPES:
        return torch.from_numpy(array)
    dtype = tensor_adapters.to_torch_dtype(ir.DataType.from_numpy(array.dtype))
    return torch.from_numpy(array.view(f"u{array.itemsize}")).view(dtype)


def same_tensor(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    """Return whether two weights are equal bit for bit, without copying them if they are contiguous."""
    same = np.array_equal if a.dtype == ir.DataType.STRING else same_bits
    return a.dtype == b.dtype and same(a.numpy(), b.numpy())


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays have the same dtype, shape and bits, without copying them if they are contiguous."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.__array_interface__["data"] == b.__array_interface__["data"] and a.strides == b.strides:
        return True
    flat_a, flat_b = (np.asarray(array, order="C").reshape(-1).view(np.uint8) for array in (a, b))
    chunks = range(0, len(flat_a), _CHUNK)
    return all(np.array_equal(flat_a[start : start + _CHUNK], flat_b[start : start + _CHUNK]) for start in chunks)


# The dtypes whose numbers torch can hold but not convert, and those to which they are converted.
_WITHOUT_ARITHMETIC = {
    "int4": np.int8,
    "int2": np.int8,
    "uint4": np.uint8,
    "uint2": np.uint8,
    "float4_e2m1fn": np.float32,
}
_CHUNK = 2**24  # bytes
_BY_ML_DTYPES = 2  # `isbuiltin` of a dtype that NumPy does not have itself
