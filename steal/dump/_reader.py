"""Read the tensors of a dump: validate their positions at once, and read each tensor when it is accessed."""

import functools
import math
import mmap
import os
import reprlib
import sys
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from google.protobuf.message import DecodeError
from onnx import NodeProto, TensorProto

from .._errors import DAMAGE, DumpError, one_line, os_error_reason
from ..files._untrusted import open_untrusted
from ..values._dtypes import CARRIERS, dtype_of, from_carrier
from ..values._foreign import Spec
from ..values._growth import MAX_RATIO, concatenate, part_references
from ..values._tensors import MAX_DIMS
from . import _format as form
from ._compression import decompress_bytes
from ._protobuf import Span, split
from ._rows import Rows

_EXTERNAL, _UINT8 = TensorProto.EXTERNAL, TensorProto.UINT8
_MAX_DIGITS = 18  # the maximum number of digits of an offset
_INLINE = -1, -1  # the span of bytes that are in the model
# Linux counts a private mapping as memory that may be written, and refuses one larger than the machine's memory.
# Python before 3.13 has no name for the flag.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0


class TensorRow(NamedTuple):
    """A row of the tensor index.

    Attributes:
        name: the name of the node's output.
        dtype: the name of the torch dtype.
        shape: the shape.
        compression: `"zlib"` if its bytes are compressed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    compression: str | None = None


class Spans:
    """Spans in a file, in 16 bytes each."""

    def __init__(self) -> None:
        self._bounds = array("q")

    def append(self, start: int, stop: int) -> None:
        """Add a span."""
        self._bounds.extend((start, stop))

    def __len__(self) -> int:
        return len(self._bounds) // 2

    def __getitem__(self, index: int) -> Span:
        return self._bounds[2 * index], self._bounds[2 * index + 1]

    def array(self) -> npt.NDArray[np.int64]:
        """Return the spans as an array of two columns."""
        return np.array(self._bounds, dtype=np.int64).reshape(-1, 2)


class Reader:
    """The tensors of one dump; a `TensorSource`.

    Attributes:
        location: the name of the data file; None if the bytes of all tensors are in the model.

    Args:
        path: the path of the model, for messages and to find its data file.
        model: the contents of the model.
        nodes: the span of each tensor's node.
        rows: the tensor index, of untrusted JSON.
        grown: the index of grown tensors, as untrusted JSON. A grown tensor is an earlier one plus what was appended
            to it in one dimension, as a key-value cache grows.

    Raises:
        DumpError: a node is damaged, or its bytes are not in the data file or overlap those of another tensor.
    """

    def __init__(self, path: Path, model: bytes, nodes: Spans, rows: Rows, grown: Sequence[Spec]) -> None:
        self._path = path
        self._model = model
        self._nodes = nodes
        self._rows = rows
        self._grown = self._parse_grown(grown)
        self.location: str | None = None
        self._data_spans = Spans()
        for index in range(len(rows)):
            self._data_spans.append(*self._data_span(index))
        # Now, before another dump replaces this one: an existing mapping is not affected by that.
        self._mapped = b"" if self.location is None else self._map(self.location)
        self._check_data_spans()

    def get(self, reference: Spec) -> torch.Tensor:
        """Return the tensor with this index; see `TensorSource.get`.

        Repeated look-ups of a tensor that is mapped from a file share its memory.
        """
        if type(reference) is int and reference < 0:
            return self._concatenate(reference)
        name, dtype_name, shape, compression = self.row(reference)
        dtype = dtype_of(dtype_name)
        if dtype is None:
            raise self._damage(f"tensor {name!r:.200} has an unknown dtype: {dtype_name!r:.200}")
        carrier, dims = CARRIERS[dtype], [*shape, 2] if dtype.is_complex else [*shape]
        node, tensor, inline_span = self._node(reference)
        span = self._data_spans[reference]
        if span != _INLINE:
            raw = memoryview(self._mapped)[slice(*span)]
        else:
            raw = memoryview(self._model)[slice(*inline_span)] if inline_span else memoryview(tensor.raw_data)
        nbytes = math.prod(dims) * carrier.view.itemsize
        onnx_type, stored_dims = (_UINT8, [len(raw)]) if compression else (carrier.onnx_type, dims)
        is_tensor = node.op_type == "Constant" and node.output == [name]
        if not is_tensor or tensor.data_type != onnx_type or tensor.dims != stored_dims:
            raise self._damage(f"its node {reference} is not the tensor {name!r:.200} that its index lists")
        if not compression and len(raw) != nbytes:
            raise self._damage(f"tensor {name!r:.200} has {len(raw)} bytes, and its shape requires {nbytes}")
        if not nbytes:
            # device="cpu": the caller may have set another default device.
            return from_carrier(torch.empty(dims, dtype=carrier.view, device="cpu"), dtype)
        if compression:
            data: memoryview | bytearray = self._decompress(name, raw, nbytes, dtype.itemsize)
        elif span == _INLINE:
            data = bytearray(raw)
        elif span[0] % dtype.itemsize:
            raise self._damage(f"the bytes of {name!r:.200} begin at {span[0]}, which is not aligned for {dtype_name}")
        else:
            data = raw
        return from_carrier(torch.frombuffer(data, dtype=carrier.view).reshape(dims), dtype)

    def _decompress(self, name: str, raw: memoryview, nbytes: int, itemsize: int) -> bytearray:
        """Decompress the bytes of the tensor `name`; see `decompress_bytes`."""
        try:
            return decompress_bytes(raw, nbytes, itemsize)
        except ValueError as error:
            raise self._damage(f"the bytes of {name!r:.200}: {error}") from error

    def __len__(self) -> int:
        return len(self._rows)

    view = get

    def row(self, reference: Spec) -> TensorRow:
        """Return the index row of a tensor.

        Raises:
            DumpError: there is no such tensor, or its row is damaged.
        """
        if type(reference) is not int or not 0 <= reference < len(self._rows):
            raise self._damage(f"it refers to a tensor that is not in it: {reprlib.repr(reference)}")
        try:
            return _parse_row(*self._rows[reference])
        except DAMAGE as error:
            raise self._damage(f"the row of its tensor {reference}: {one_line(error)}") from error

    def _damage(self, what: str) -> DumpError:
        return DumpError(f"{str(self._path)!r} is damaged: {what}")

    def _node(self, index: int) -> tuple[NodeProto, TensorProto, Span | None]:
        """Return a node, its tensor, and the span of its bytes in the model; None if they are in the tensor object."""
        start, stop = self._nodes[index]
        try:
            if stop - start <= form.MAX_NODE_SIZE:
                node = NodeProto.FromString(self._model[start:stop])
                if len(node.attribute) == 1:
                    return node, node.attribute[0].t, None
            else:  # parse it without the bytes of the tensor
                rest, inside = split(self._model, (start, stop), form.ATTRIBUTE)
                _, inside = split(self._model, inside, form.TENSOR)
                header, raw = split(self._model, inside, form.RAW_DATA)
                if len(rest) + len(header) <= form.MAX_NODE_SIZE:
                    return NodeProto.FromString(rest), TensorProto.FromString(header), raw
        except (DecodeError, ValueError):
            pass
        raise self._damage(f"its node {index} is not a tensor")

    def _data_span(self, index: int) -> Span:
        """Return the span of a tensor's bytes in the data file; `_INLINE` if they are in the model."""
        _, tensor, _ = self._node(index)
        if tensor.data_location != _EXTERNAL:
            return _INLINE
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location, offset, length = entries.get("location"), entries.get("offset", ""), entries.get("length", "")
        is_str = type(location) is type(offset) is type(length) is str  # protobuf returns bytes if not UTF-8
        if not (is_str and offset.isdecimal() and length.isdecimal() and max(len(offset), len(length)) <= _MAX_DIGITS):
            raise self._damage(f"the position of the bytes of its tensor {index} is missing or not valid")
        if self.location != location and self.location is not None:
            raise self._damage(f"its bytes are in more than one file: {self.location!r:.200}, {location!r:.200}")
        self.location = location
        start = int(offset)
        return start, start + int(length)

    def _map(self, location: str) -> "mmap.mmap | bytes":
        """Map the data file; a private mapping, so that writing to a tensor doesn't change the file."""
        if location in ("", ".", "..") or Path(location).name != location:
            raise self._damage(f"its data file is outside of its folder: {location!r:.200}")
        try:
            with open_untrusted(self._path.parent / location, follow=False) as file:
                if not os.fstat(file.fileno()).st_size:  # an empty file can't be mapped
                    return b""
                if sys.platform == "win32":
                    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                flags, access = mmap.MAP_PRIVATE | _NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
                return mmap.mmap(file.fileno(), 0, flags=flags, prot=access)
        except OSError as error:
            reason = os_error_reason(error)
            raise DumpError(f"can't read {location!r:.200}, the data of {str(self._path)!r}: {reason}") from error

    def _check_data_spans(self) -> None:
        """Check that all bytes lie in the data file and that no tensors overlap."""
        spans = self._data_spans.array()
        spans = spans[spans[:, 0] >= 0]  # not `_INLINE`
        spans = spans[np.lexsort((-spans[:, 1], spans[:, 0]))]  # by start, the longest first
        reach = np.maximum.accumulate(spans[:, 1])  # the end of all bytes up to each span
        if len(reach) and reach[-1] > len(self._mapped):
            raise DumpError(
                f"{self.location!r:.200} beside {str(self._path)!r} is truncated: "
                f"it has {len(self._mapped)} bytes, and the tensors end at {reach[-1]}"
            )
        if not (spans[1:, 0] >= reach[:-1]).all():
            raise self._damage(f"two of its tensors overlap in {self.location!r:.200}")

    def _parse_grown(self, grown: Sequence[Spec]) -> list[tuple[int, int, int]]:
        """Return (first, tail, dim) of each grown tensor (see `part_references`)."""
        are_triples = isinstance(grown, list | tuple) and all(type(row) is list and len(row) == 3 for row in grown)
        if not are_triples or any(type(item) is not int for row in grown for item in row):
            raise self._damage(f"the list of its grown tensors is not valid: {reprlib.repr(grown)}")
        rows = [(first, tail, dim) for first, tail, dim in grown]
        # Each tail belongs to one tensor; else a small file could describe many large tensors with the same parts.
        if len({tail for _, tail, _ in rows}) < len(rows):
            raise self._damage("two of its grown tensors end with the same part")
        return rows

    def parts(self, reference: Spec) -> list[int]:
        """Return the references of the parts of a grown tensor; for any other, its own reference.

        Raises:
            DumpError: a part doesn't exist or was stored later.
        """
        if type(reference) is not int:
            raise self._damage(f"it refers to a tensor that is not in it: {reprlib.repr(reference)}")
        if reference >= 0:
            return [reference]
        try:
            return part_references(reference, self._grown)
        except ValueError as error:
            raise self._damage(str(error)) from error

    @property
    def has_grown(self) -> bool:
        """Whether the dump contains grown tensors."""
        return bool(self._grown)

    def nbytes(self, reference: Spec) -> int:
        """Return the size of a tensor in bytes, decompressed."""
        row = self.row(reference)
        dtype = dtype_of(row.dtype)
        return 0 if dtype is None else math.prod(row.shape) * dtype.itemsize  # `get` refuses an unknown dtype

    @functools.cached_property
    def _total_bytes(self) -> int:
        return sum(map(self.nbytes, range(len(self))))

    def check_grown_size(self, references: Iterable[Spec]) -> None:
        """Refuse a value whose grown tensors are many times larger than the dump.

        Raises:
            DumpError: the value is too large.
        """
        remaining = MAX_RATIO * self._total_bytes
        for reference in dict.fromkeys(item for item in references if type(item) is int and item < 0):
            remaining -= sum(map(self.nbytes, self.parts(reference)))
            if remaining < 0:
                raise self._damage("the grown tensors of one value are many times larger than the dump")

    def _concatenate(self, reference: int) -> torch.Tensor:
        try:
            return concatenate(reference, self._grown, self.get)
        except ValueError as error:
            raise self._damage(str(error)) from error


def _parse_row(name: Spec, dtype: Spec, shape: Spec, compression: Spec = None) -> TensorRow:
    dims = tuple(array("q", shape))  # TypeError if it is no list of integers
    if len(dims) > MAX_DIMS or min(dims, default=0) < 0:
        raise ValueError(f"the shape {reprlib.repr(shape)} is not valid")
    if not (isinstance(name, str) and isinstance(dtype, str) and compression in (None, "zlib")):
        raise ValueError(f"{reprlib.repr([name, dtype, shape, compression])} is not valid")
    return TensorRow(name, dtype, dims, compression)
