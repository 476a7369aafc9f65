"""The tensors of a dump: where each one's bytes are, and the tensor when it is asked for."""

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
import torch
from google.protobuf.message import DecodeError
from onnx import NodeProto, TensorProto

from .._errors import DAMAGE, DumpError, in_short
from ..files._untrusted import open_untrusted
from ..values._dtypes import CARRIERS, dtype_of, from_carrier
from ..values._growth import concatenate, part_references
from ..values._structure import Spec
from . import _format as form
from ._compression import unpack
from ._protobuf import Span, split

# As much of one node as the parser gets: what it makes of it is gone before the next.
_SMALL = 2**18
_EXTERNAL, _UINT8 = TensorProto.EXTERNAL, TensorProto.UINT8
_DIGITS = 18  # of an offset
_MOST_JOINED = 16  # times as much as there is
_MOST_DIMS = 256  # the product of a million takes minutes
# Linux counts a private mapping as memory that will be written, and refuses one larger than the machine has. Python
# before 3.13 has no name for the flag.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0


class Row(NamedTuple):
    """What the index says of a tensor.

    Attributes:
        name: of its node's output.
        dtype: the name of its torch dtype.
        shape: its shape.
        packing: `"zlib"` if its bytes are compressed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    packing: str | None = None


class Reader:
    """The tensors of one dump; a `Holder`.

    Args:
        path: of the model, for messages, and as its data is beside it.
        model: the model.
        nodes: where its nodes are in it, as many as rows.
        rows: what the index says of each tensor, as JSON.
        grown: what it says of each tensor that was kept in parts.

    Raises:
        DumpError: a node is damaged, or its bytes are not in the data file or those of another tensor too.
    """

    def __init__(
        self, path: Path, model: bytes, nodes: Sequence[Span], rows: Sequence[Spec], grown: Sequence[Spec] = ()
    ) -> None:
        self._path = path
        self._model = model
        self._nodes = nodes
        self._rows = rows
        self._grown = self._checked(grown)
        self._location: str | None = None
        self._places = [self._place(index) for index in range(len(rows))]
        # At once, before another dump takes this one's place: a file that is mapped stays what it was.
        self._mapped = b"" if self._location is None else self._map(self._location)
        self._check_places()

    def get(self, reference: Spec) -> torch.Tensor:
        """The tensor at this place of the index; see `Holder`.

        Two look-ups share memory where the tensor is mapped from a file.
        """
        if type(reference) is int and reference < 0:
            return self._joined(reference)
        name, dtype_name, shape, packing = self.row(reference)
        dtype = dtype_of(dtype_name)
        if dtype is None:
            raise self._damage(f"tensor {name!r:.200} has no known dtype: {dtype_name!r:.200}")
        carrier, dims = CARRIERS[dtype], [*shape, 2] if dtype.is_complex else [*shape]
        node, tensor, inside = self._node(reference)
        if place := self._places[reference]:
            raw = memoryview(self._mapped)[slice(*place)]
        else:
            raw = memoryview(self._model)[slice(*inside)] if inside else memoryview(tensor.raw_data)
        wanted = math.prod(dims) * carrier.view.itemsize
        kind, said = (_UINT8, [len(raw)]) if packing else (carrier.onnx_type, dims)
        if node.op_type != "Constant" or node.output != [name] or tensor.data_type != kind or tensor.dims != said:
            raise self._damage(f"its node {reference} is not the tensor {name!r:.200} that its index speaks of")
        if not packing and len(raw) != wanted:
            raise self._damage(f"tensor {name!r:.200} has {len(raw)} bytes where its shape wants {wanted}")
        if not wanted:
            # On the CPU by name: the caller may have set another default device.
            return from_carrier(torch.empty(dims, dtype=carrier.view, device="cpu"), dtype)
        if packing:
            numbers: memoryview | bytearray = self._unpacked(name, raw, wanted, dtype.itemsize)
        elif place is None:
            numbers = bytearray(raw)
        elif place[0] % dtype.itemsize:
            raise self._damage(f"the bytes of {name!r:.200} begin where no {dtype_name} can: at {place[0]}")
        else:
            numbers = raw
        return from_carrier(torch.frombuffer(numbers, dtype=carrier.view).reshape(dims), dtype)

    def _unpacked(self, name: str, raw: memoryview, wanted: int, itemsize: int) -> bytearray:
        try:
            return unpack(raw, wanted, itemsize)
        except ValueError as error:
            raise self._damage(f"the bytes of {name!r:.200}: {error}") from error

    def __len__(self) -> int:
        return len(self._rows)

    view = get

    def row(self, reference: Spec) -> Row:
        """What the index says of the tensor at this place of it.

        Raises:
            DumpError: it has no such place, or what is there is damaged.
        """
        if type(reference) is not int or not 0 <= reference < len(self._rows):
            raise self._damage(f"it refers to a tensor that is not in it: {reprlib.repr(reference)}")
        try:
            return _row(*self._rows[reference])
        except DAMAGE as error:
            raise self._damage(f"the row of its tensor {reference}: {in_short(error)}") from error

    def _damage(self, what: str) -> DumpError:
        return DumpError(f"{str(self._path)!r} is damaged: {what}")

    def _node(self, index: int) -> tuple[NodeProto, TensorProto, Span | None]:
        """A node, its tensor, and where the bytes of that are in the model, if they are not in the tensor."""
        start, stop = self._nodes[index]
        try:
            if stop - start <= _SMALL:
                node = NodeProto.FromString(self._model[start:stop])
                if len(node.attribute) == 1:
                    return node, node.attribute[0].t, None
            else:
                rest, inside = split(self._model, (start, stop), form.ATTRIBUTE)
                _, inside = split(self._model, inside, form.TENSOR)
                header, raw = split(self._model, inside, form.RAW_DATA)
                if len(rest) + len(header) <= _SMALL:
                    return NodeProto.FromString(rest), TensorProto.FromString(header), raw
        except (DecodeError, ValueError):
            pass
        raise self._damage(f"its node {index} is no tensor")

    def _place(self, index: int) -> Span | None:
        """Where the bytes of a tensor are in the data file; None if they are in the model."""
        _, tensor, _ = self._node(index)
        if tensor.data_location != _EXTERNAL:
            return None
        place = {entry.key: entry.value for entry in tensor.external_data}
        location, offset, length = place.get("location"), place.get("offset", ""), place.get("length", "")
        texts = type(location) is type(offset) is type(length) is str  # what is not UTF-8 is given as bytes
        if not (texts and offset.isdecimal() and length.isdecimal() and max(len(offset), len(length)) <= _DIGITS):
            raise self._damage(f"it does not say where the bytes of its tensor {index} are")
        if self._location != location and self._location is not None:
            raise self._damage(f"its bytes are in more than one file: {self._location!r:.200}, {location!r:.200}")
        self._location = location
        start = int(offset)
        return start, start + int(length)

    def _map(self, location: str) -> "mmap.mmap | bytes":
        if location in ("", ".", "..") or Path(location).name != location:
            raise self._damage(f"it points outside its folder: {location!r:.200}")
        try:
            with open_untrusted(self._path.parent / location, follow=False) as file:
                if not os.fstat(file.fileno()).st_size:  # nothing can be mapped
                    return b""
                if sys.platform == "win32":
                    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                flags, access = mmap.MAP_PRIVATE | _NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
                return mmap.mmap(file.fileno(), 0, flags=flags, prot=access)
        except OSError as error:
            what = error.strerror or error
            raise DumpError(f"can't read {location!r:.200}, the data of {str(self._path)!r}: {what}") from error

    def _check_places(self) -> None:
        """All bytes are in the file, and each is of one tensor."""
        spans = np.array([place for place in self._places if place], dtype=np.int64).reshape(-1, 2)
        spans = spans[np.lexsort((-spans[:, 1], spans[:, 0]))]
        reach = np.maximum.accumulate(spans[:, 1])
        if len(reach) and reach[-1] > len(self._mapped):
            raise DumpError(
                f"{self._location!r:.200} beside {str(self._path)!r} is cut short: "
                f"it has {len(self._mapped)} bytes, and its tensors have {reach[-1]}"
            )
        if not (spans[1:, 0] >= reach[:-1]).all():
            raise self._damage(f"two of its tensors have bytes of {self._location!r:.200} in common")

    def _checked(self, grown: Sequence[Spec]) -> list[tuple[int, int, int]]:
        lists = isinstance(grown, list | tuple) and all(type(row) is list and len(row) == 3 for row in grown)
        if not lists or any(type(item) is not int for row in grown for item in row):
            raise self._damage("it does not say what its tensors in parts are made of")
        rows = [(first, tail, dim) for first, tail, dim in grown]
        # Each part but the first is of one tensor: in a small file, many large ones could be made of the same.
        if len({tail for _, tail, _ in rows}) < len(rows):
            raise self._damage("two of its tensors end with the same part")
        return rows

    def parts(self, reference: Spec) -> list[int]:
        """The places in the index of the tensors that one which was kept in parts is made of; else its own.

        Raises:
            DumpError: it begins with one that comes later, or is not in the index.
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
    def joins(self) -> bool:
        """Whether it has tensors that were kept in parts."""
        return bool(self._grown)

    def nbytes(self, reference: Spec) -> int:
        """The bytes of the tensor at this place of the index, unpacked."""
        row = self.row(reference)
        dtype = dtype_of(row.dtype)
        return 0 if dtype is None else math.prod(row.shape) * dtype.itemsize

    @functools.cached_property
    def _total(self) -> int:
        return sum(map(self.nbytes, range(len(self))))

    def check_joins(self, references: Iterable[Spec]) -> None:
        """Refuse what joining would make of a small file: in one value, a long tensor and all that it grew from.

        Raises:
            DumpError: the tensors in parts among `references` are many times as large as all that the dump holds.
        """
        left = _MOST_JOINED * self._total
        for reference in dict.fromkeys(item for item in references if type(item) is int and item < 0):
            left -= sum(map(self.nbytes, self.parts(reference)))
            if left < 0:
                raise self._damage("one value asks for many times what it holds")

    def _joined(self, reference: int) -> torch.Tensor:
        try:
            return concatenate(reference, self._grown, self.get)
        except ValueError as error:
            raise self._damage(str(error)) from error


def _row(name: Spec, dtype: Spec, shape: Spec, packing: Spec = None) -> Row:
    dims = tuple(array("q", shape))
    if len(dims) > _MOST_DIMS or min(dims, default=0) < 0:
        raise ValueError(f"no tensor has the shape {reprlib.repr(shape)}")
    if not (isinstance(name, str) and isinstance(dtype, str) and packing in (None, "zlib")):
        raise ValueError(f"no tensor is like {reprlib.repr([name, dtype, shape, packing])}")
    return Row(name, dtype, dims, packing)
