"""Check that the tensors of an untrusted ONNX file have the data that they declare, in the file or in its folder."""

import math
import os
import reprlib
from pathlib import Path

import onnx_ir as ir
from onnx import TensorProto, helper

from filch.steal.files._untrusted import open_companion

_MAX_DIMS = 64  # NumPy's limit
_MAX_DIGITS = 18  # of an offset
_TYPES = {dtype.value: dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED}
_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)  # two numbers per element


class Tensors:
    """Checks the tensors of one file.

    Args:
        path: the path of the file; external data are in the same folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}

    def check(self, tensor: TensorProto, *, load: bool = False) -> None:
        """Refuse a tensor whose data do not fit its declaration, or are outside of the file's folder.

        Args:
            tensor: the tensor.
            load: copy external data into the tensor, for code that can't read them.

        Raises:
            ValueError: the tensor is refused; the message has the reason.
        """
        dtype = _TYPES.get(tensor.data_type)
        if dtype is None:
            raise ValueError(f"tensor {tensor.name!r:.80} has the unknown type {tensor.data_type}")
        dims = tensor.dims
        if len(dims) > _MAX_DIMS or any(dim < 0 for dim in dims):
            raise ValueError(f"tensor {tensor.name!r:.80} has the invalid shape {reprlib.repr(list(dims))}")
        elements = math.prod(dims)
        if tensor.data_location == TensorProto.EXTERNAL:
            self._check_external(tensor, dtype, elements, load=load)
        elif (stored := _stored_length(tensor, dtype)) != (required := _required_length(tensor, dtype, elements)):
            unit = "bytes" if tensor.HasField("raw_data") else "elements"
            raise ValueError(f"tensor {tensor.name!r:.80} has {stored:,} {unit}, but its shape requires {required:,}")

    def _check_external(self, tensor: TensorProto, dtype: ir.DataType, elements: int, *, load: bool) -> None:
        """Refuse external data that are too short or not in the file's folder; see `check`."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location, offset, length = entries.get("location", ""), entries.get("offset", "0"), entries.get("length", "")
        if dtype == ir.DataType.STRING or not _is_count(offset) or (length and not _is_count(length)):
            raise ValueError(f"tensor {tensor.name!r:.80} has no valid location of its external data")
        required, start = _byte_count(dtype, elements), int(offset)
        stored = min(int(length or required), self._size(location) - start)
        if stored < required:
            raise ValueError(
                f"tensor {tensor.name!r:.80} has {max(stored, 0):,} bytes, but its shape requires {required:,}"
            )
        if load:
            with open_companion(self._path, location) as file:
                file.seek(start)
                tensor.raw_data = file.read(required)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")

    def _size(self, location: str) -> int:
        """Return the size of a file of external data."""
        if location not in self._sizes:
            try:
                with open_companion(self._path, location) as file:
                    self._sizes[location] = os.fstat(file.fileno()).st_size
            except OSError as error:
                raise ValueError(f"can't read its weights {location!r:.80}: {error.strerror or error}") from error
        return self._sizes[location]


def _byte_count(dtype: ir.DataType, elements: int) -> int:
    """Return how many bytes this number of elements takes."""
    return -(-elements * dtype.bitwidth // 8)


def _stored_length(tensor: TensorProto, dtype: ir.DataType) -> int:
    """Return the length of a tensor's data: bytes of `raw_data`, or elements of the field for its type."""
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    return len(getattr(tensor, helper.tensor_dtype_to_field(dtype.value)))


def _required_length(tensor: TensorProto, dtype: ir.DataType, elements: int) -> int:
    """Return how many bytes of `raw_data`, or elements of the field for its type, a tensor must have."""
    if dtype == ir.DataType.STRING:
        return elements
    if tensor.HasField("raw_data"):
        return _byte_count(dtype, elements)
    if dtype in _COMPLEX:
        return 2 * elements
    return _byte_count(dtype, elements) if dtype.bitwidth < 8 else elements  # types of less than 8 bits are packed


def _is_count(text: str) -> bool:
    """Whether a text is a decimal number that is not too long to be an offset."""
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
