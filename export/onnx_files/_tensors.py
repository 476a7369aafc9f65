"""Check that the tensors of an untrusted ONNX file have the data that they declare, in the file or in its folder."""

import math
import os
import reprlib
from pathlib import Path

import onnx_ir as ir
from onnx import TensorProto, helper

from filch.steal import open_companion

_MAX_DIMS = 64  # NumPy's limit
_MAX_DIGITS = 18  # of an offset
_TYPES = {kind.value: kind for kind in ir.DataType if kind != ir.DataType.UNDEFINED}
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
        kind = _TYPES.get(tensor.data_type)
        if kind is None:
            raise ValueError(f"tensor {tensor.name!r:.80} has the unknown type {tensor.data_type}")
        dims = tensor.dims
        if len(dims) > _MAX_DIMS or any(dim < 0 for dim in dims):
            raise ValueError(f"tensor {tensor.name!r:.80} has the invalid shape {reprlib.repr(list(dims))}")
        size = math.prod(dims)
        if tensor.data_location == TensorProto.EXTERNAL:
            self._check_external(tensor, kind, size, load=load)
        elif (has := _length(tensor, kind)) != (needs := _required_length(tensor, kind, size)):
            unit = "bytes" if tensor.HasField("raw_data") else "elements"
            raise ValueError(f"tensor {tensor.name!r:.80} has {has:,} {unit}, but its shape requires {needs:,}")

    def _check_external(self, tensor: TensorProto, kind: ir.DataType, size: int, *, load: bool) -> None:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location, offset, length = entries.get("location", ""), entries.get("offset", "0"), entries.get("length", "")
        if kind == ir.DataType.STRING or not _is_count(offset) or (length and not _is_count(length)):
            raise ValueError(f"tensor {tensor.name!r:.80} has no valid location of its external data")
        needs, start = _bytes(kind, size), int(offset)
        has = min(int(length or needs), self._size(location) - start)
        if has < needs:
            raise ValueError(f"tensor {tensor.name!r:.80} has {max(has, 0):,} bytes, but its shape requires {needs:,}")
        if load:
            with open_companion(self._path, location) as file:
                file.seek(start)
                tensor.raw_data = file.read(needs)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")

    def _size(self, location: str) -> int:
        if location not in self._sizes:
            try:
                with open_companion(self._path, location) as file:
                    self._sizes[location] = os.fstat(file.fileno()).st_size
            except OSError as error:
                raise ValueError(f"can't read its weights {location!r:.80}: {error.strerror or error}") from error
        return self._sizes[location]


def _bytes(kind: ir.DataType, size: int) -> int:
    """Return the bytes of `size` elements."""
    return -(-size * kind.bitwidth // 8)


def _length(tensor: TensorProto, kind: ir.DataType) -> int:
    """Return the length of a tensor's data: bytes of `raw_data`, or elements of the field for its type."""
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    return len(getattr(tensor, helper.tensor_dtype_to_field(kind.value)))


def _required_length(tensor: TensorProto, kind: ir.DataType, size: int) -> int:
    """Return the value of `_length` that a tensor of this type and size must have."""
    if kind == ir.DataType.STRING:
        return size
    if tensor.HasField("raw_data"):
        return _bytes(kind, size)
    if kind in _COMPLEX:
        return 2 * size
    return _bytes(kind, size) if kind.bitwidth < 8 else size  # types of less than 8 bits are packed


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
