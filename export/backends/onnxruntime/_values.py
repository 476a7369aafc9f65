"""Convert between torch's tensors and ONNX Runtime's values."""

import math
from functools import cache

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from onnx import helper
from onnx_ir import tensor_adapters
from torch.utils import dlpack

from ...common._arrays import comparable, torch_to_array

# The dtypes that torch lacks, and those that ONNX Runtime can't share with it.
_NOT_SHARED = ("tensor(string", "tensor(int4", "tensor(uint4", "tensor(float8")
# The types of weights that a session can be given as values.
_NAMES = "FLOAT DOUBLE FLOAT16 BFLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL"
DTYPES = frozenset(ir.DataType[name] for name in _NAMES.split(" "))


def is_plain(value: ort.OrtValue) -> bool:
    """Return whether `to_torch` can convert a value: tensors, but not of strings, of 4 bits or of float8."""
    return bool(value.is_tensor()) and not value.data_type().startswith(_NOT_SHARED)


def to_comparable(value: ort.OrtValue) -> torch.Tensor | None:
    """Return a tensor to compare a value by; see `comparable`."""
    if is_plain(value):
        return to_torch(value)
    if value.is_tensor_sequence():
        return comparable(_elements(value))
    try:
        return comparable(value.numpy()) if value.data_type() == "tensor(string)" else None
    except UnicodeDecodeError:  # a constant of the file that is not UTF-8
        return None


def _elements(sequence: ort.OrtValue) -> list[np.ndarray]:
    """Return the tensors of a sequence, which ONNX Runtime gives as outputs of a session only."""
    session = _identity(sequence.element_type())
    binding = session.io_binding()
    binding.bind_ortvalue_input("given", sequence)
    binding.bind_output("same")
    session.run_with_iobinding(binding)
    (elements,) = binding.copy_outputs_to_cpu()
    return list(elements)


@cache
def _identity(element_type: int) -> ort.InferenceSession:
    """Return a session that returns a sequence of tensors of this ONNX type."""
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(element_type, None))
    given, same = (helper.make_value_info(name, kind) for name in ("given", "same"))
    graph = helper.make_graph([helper.make_node("Identity", ["given"], ["same"])], "identity", [given], [same])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def to_ort(tensor: torch.Tensor) -> ort.OrtValue:
    """Convert a tensor; a complex one gets a last dimension with the real and the imaginary part."""
    return array_to_ort(torch_to_array(torch.view_as_real(tensor) if tensor.is_complex() else tensor))


def array_to_ort(array: np.ndarray) -> ort.OrtValue:
    """Convert an array to a value, which shares its memory if it is contiguous."""
    array = np.asarray(array, order="C")
    if array.dtype.isbuiltin == 1:  # a dtype of NumPy itself
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = array.view(f"u{array.itemsize}")  # NumPy does not have the dtype itself
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, ir.DataType.from_numpy(array.dtype).value)


@cache
def _torch_dtype(element_type: int) -> torch.dtype:
    """Return the torch dtype of an ONNX type, by its number."""
    return tensor_adapters.to_torch_dtype(ir.DataType(element_type))


def size_of(value: ort.OrtValue) -> int:
    """Return the bytes of a tensor, which ONNX Runtime itself tells since 1.26 only."""
    return int(math.prod(value.shape())) * _torch_dtype(value.element_type()).itemsize


def to_torch(value: ort.OrtValue) -> torch.Tensor:
    """Convert a value to a tensor, which shares its memory."""
    dtype = _torch_dtype(value.element_type())
    raw = dlpack.from_dlpack(value._ortvalue.to_dlpack())  # noqa: SLF001  the public class has no way to these bits
    return raw if raw.dtype == dtype else raw.view(dtype)  # DLPack has uint8 for a boolean
