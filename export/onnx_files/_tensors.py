"""Checks the tensors of an ONNX file of unknown origin: that each has the numbers it declares, and where they lie."""

import math
import os
import reprlib
from pathlib import Path

import onnx_ir as ir
from onnx import TensorProto

from filch.steal import open_companion

_MOST_DIMS = 64  # of numpy
_DIGITS = 18  # of an offset
_TYPES = {kind.value: kind for kind in ir.DataType if kind != ir.DataType.UNDEFINED}
_COMPLEX = {ir.DataType.COMPLEX64: "float_data", ir.DataType.COMPLEX128: "double_data"}
_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
}


class Tensors:
    """Checks the tensors of one file.

    Args:
        path: of the file; its external data is beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}

    def check(self, tensor: TensorProto, *, load: bool = False) -> None:
        """Refuse a tensor that is not what it declares, or whose numbers are not in the file or its folder.

        Args:
            tensor: it.
            load: put external numbers into the tensor, for who can't follow them.

        Raises:
            ValueError: what is wrong with it.
        """
        kind = _TYPES.get(tensor.data_type)
        if kind is None:
            raise ValueError(f"tensor {tensor.name!r:.80} has the unknown type {tensor.data_type}")
        dims = tensor.dims
        if len(dims) > _MOST_DIMS or any(dim < 0 for dim in dims):
            raise ValueError(
                f"tensor {tensor.name!r:.80} has the shape {reprlib.repr(list(dims))}, which no tensor has"
            )
        size = math.prod(dims)
        if tensor.data_location == TensorProto.EXTERNAL:
            self._check_external(tensor, kind, size, load=load)
        elif (has := _held(tensor, kind)) != (wants := _wanted(tensor, kind, size)):
            unit = "bytes" if tensor.HasField("raw_data") else "numbers"
            raise ValueError(f"tensor {tensor.name!r:.80} has {has:,} {unit} where its shape wants {wants:,}")

    def _check_external(self, tensor: TensorProto, kind: ir.DataType, size: int, *, load: bool) -> None:
        place = {entry.key: entry.value for entry in tensor.external_data}
        location, offset, length = place.get("location", ""), place.get("offset", "0"), place.get("length", "")
        if kind == ir.DataType.STRING or not _is_count(offset) or (length and not _is_count(length)):
            raise ValueError(f"tensor {tensor.name!r:.80} does not say where its numbers are")
        wanted, start = _bytes(kind, size), int(offset)
        has = min(int(length or wanted), self._size(location) - start)
        if has < wanted:
            raise ValueError(f"tensor {tensor.name!r:.80} has {max(has, 0):,} bytes where its shape wants {wanted:,}")
        if load:
            with open_companion(self._path, location) as file:
                file.seek(start)
                tensor.raw_data = file.read(wanted)
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
    return -(-size * kind.bitwidth // 8)


def _held(tensor: TensorProto, kind: ir.DataType) -> int:
    """How much a tensor holds: bytes, or numbers in the field of its type."""
    return len(tensor.raw_data) if tensor.HasField("raw_data") else len(getattr(tensor, _field(kind)))


def _wanted(tensor: TensorProto, kind: ir.DataType, size: int) -> int:
    """How much `_held` has to be."""
    if kind == ir.DataType.STRING:
        return size
    if tensor.HasField("raw_data"):
        return _bytes(kind, size)
    if kind in _COMPLEX:
        return 2 * size
    return _bytes(kind, size) if kind.bitwidth < 8 else size  # narrow ones are packed


def _field(kind: ir.DataType) -> str:
    if kind == ir.DataType.STRING:
        return "string_data"
    return _COMPLEX.get(kind) or _FIELDS.get(kind, "int32_data")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS
