"""The index of a dump, and the ONNX model that contains it."""

import bisect
import errno
import functools
import itertools
import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import onnx
import torch
from google.protobuf.message import EncodeError
from onnx import AttributeProto, TensorProto, helper

from .._key import Key
from .._records import ModuleInfo
from .._tf32 import Product
from ..values._dtypes import CARRIERS, dtype_name
from ..values._sharding import Sharding
from . import _format as form
from . import _protobuf as protobuf

# Encoded tags of name fields: of a tensor, a node, a graph output and a node's output. Below, fields that are the same
# in all nodes.
_TENSOR_NAME, _NODE_NAME, _OUTPUT_NAME, _NODE_OUTPUT = b"\x42", b"\x1a", b"\x0a", b"\x12"
_CONSTANT = onnx.NodeProto(op_type="Constant").SerializeToString()
_VALUE = AttributeProto(name="value", type=AttributeProto.TENSOR).SerializeToString()
_NODE_SIZE = 64  # bytes of a tensor's node and output, besides its name
_encode = json.JSONEncoder(separators=(",", ":")).encode
_IS_EXTERNAL = TensorProto(data_location=TensorProto.EXTERNAL).SerializeToString()


class Entry(NamedTuple):
    """A tensor of a dump and the position of its bytes in the data file.

    Attributes:
        name: name of the key that it was first recorded for.
        iteration: iteration of that key.
        kind: kind of that key.
        path: its path in the value.
        dtype: its torch dtype.
        shape: its shape.
        offset: of its first byte.
        length: of its bytes, as stored.
        compressed: whether the bytes are compressed.
    """

    name: str
    iteration: int
    kind: str
    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    length: int
    compressed: bool = False

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + self.length

    @property
    def label(self) -> str:
        """The name of the tensor's node and graph output, before `unique_names`."""
        label = Key(self.name, self.iteration, self.kind).place(self.path)[: form.MAX_LABEL_LENGTH]
        return label if label.isascii() else label.encode(errors="backslashreplace").decode()  # no lone surrogates


@dataclass
class Index:
    """Everything in a dump except the tensor data.

    Attributes:
        modules: the captured modules, by name.
        environment: see `environment`.
        tensors: in the order of the file.
        grown: (first, tail, dim) of each grown tensor; see `filch.grown` in `_format`.
        tensor_counts: for each record, the numbers of tensors and grown tensors when it was complete.
        failed: the calls that raised, with their exceptions.
        shardings: the layouts of plain tensors (see `filch.shardings` in `_format`).
        size: bytes of the model without the tensors' bytes, as estimated while the records are added.
        refusal: why a record was not added, as a dump with it could not be read; the index is complete up to there.
    """

    modules: dict[str, ModuleInfo]
    environment: dict[str, str]
    tensors: list[Entry] = field(default_factory=list)
    grown: list[tuple[int, int, int]] = field(default_factory=list)
    tensor_counts: list[tuple[int, int]] = field(default_factory=list)
    failed: dict[Key, str] = field(default_factory=dict)
    shardings: dict[int, Sharding] = field(default_factory=dict)
    size: int = 0
    refusal: OSError | None = None
    _chunks: list[str] = field(default_factory=list)  # JSON lists, whose items together are the rows of all records
    _ends: list[int] = field(default_factory=list)  # the number of records up to the end of each chunk

    @property
    def total_counts(self) -> tuple[int, int]:
        """The numbers of tensors and grown tensors that the records need."""
        return self.tensor_counts[-1] if self.tensor_counts else (0, 0)

    def reserve(self, size: int, tensors: Sequence[Entry]) -> bool:
        """Count records and new tensors; return False, and refuse all that follows, if the model would be too large.

        Args:
            size: of the JSON that describes them.
            tensors: the new ones, which the model also names in a node and an output.
        """
        self.size += size + sum(_NODE_SIZE + 4 * (len(entry.name) + len(entry.path)) for entry in tensors)
        if self.size > form.MAX_INDEX_SIZE:
            self.refuse(f"its index would have more than {form.MAX_INDEX_SIZE:,} bytes: record less in one file")
        return self.refusal is None

    def refuse(self, reason: str) -> None:
        """Refuse all further records."""
        self.refusal = OSError(errno.EFBIG, reason)

    def add(self, records: str, tensor_counts: Sequence[tuple[int, int]]) -> None:
        """Add records as the JSON of their rows, with their `tensor_counts`."""
        if tensor_counts:
            self.tensor_counts += tensor_counts
            self._chunks.append(records)
            self._ends.append(len(self.tensor_counts))

    def rows(self, start: int) -> Iterator[list[Any]]:
        """Return one row (see `filch.records` in `_format`) for each record from index `start` on."""
        first = bisect.bisect_right(self._ends, start)
        skip = start - (self._ends[first - 1] if first else 0)
        rows = itertools.chain.from_iterable(map(json.loads, self._chunks[first:]))
        return itertools.islice(rows, skip, None)

    def truncate(self, records: int) -> None:
        """Keep only the first `records` records and their tensors."""
        whole = bisect.bisect_right(self._ends, records)
        start = self._ends[whole - 1] if whole else 0
        # The chunk of which only the first records are kept, if any, and their counts.
        part, counts = self._chunks[whole : whole + 1], self.tensor_counts[start:records]
        del self._chunks[whole:], self._ends[whole:], self.tensor_counts[start:]
        self.add(json.dumps(json.loads(part[0])[: len(counts)]) if counts else "", counts)
        del self.tensors[self.total_counts[0] :], self.grown[self.total_counts[1] :]

    def truncate_to_size(self, size: int) -> None:
        """Keep only the records whose tensors lie in the first `size` bytes of the data file."""
        fit = next((index for index, entry in enumerate(self.tensors) if entry.end > size), len(self.tensors))
        self.truncate(bisect.bisect_right([tensors for tensors, _ in self.tensor_counts], fit))

    @property
    def end(self) -> int:
        """The size that the data file must have."""
        return max((entry.end for entry in self.tensors), default=0)

    def model(self, location: str | None, read: Callable[[int, int], bytes]) -> list[bytes]:
        """Return the serialized model in parts, as joining them would take its size in memory several times.

        Args:
            location: the data file's name; None to store the bytes in the model.
            read: returns the bytes at an offset, given offset and length.

        Raises:
            EncodeError: the model is larger than protobuf's limit.
        """
        names = unique_names(entry.label for entry in self.tensors)
        parts = [
            part
            for name, entry in zip(names, self.tensors, strict=True)
            for part in _tensor_fields(name, entry, location, read)
        ]
        if not self.tensors:  # ONNX Runtime refuses a graph without nodes
            parts = list(_tensor_fields("(no tensor)", Entry("", 0, "", "", torch.uint8, (0,), 0, 0), None, read))
        opset = max((CARRIERS[entry.dtype].opset for entry in self.tensors), default=min(form.IR_VERSIONS))
        opsets = [helper.make_opsetid("", opset)]
        model = onnx.ModelProto(ir_version=form.IR_VERSIONS[opset], producer_name="filch", opset_import=opsets)
        whole = [model.SerializeToString()]
        for key, value in self._metadata(names):
            entry = [protobuf.field(form.ENTRY_KEY, key.encode()), *protobuf.field_of(form.ENTRY_VALUE, value)]
            whole += protobuf.field_of(form.METADATA, entry)
        whole += protobuf.field_of(form.GRAPH, [onnx.GraphProto(name="filch.dump").SerializeToString(), *parts])
        if (size := sum(map(len, whole))) >= form.MAX_MODEL_SIZE:
            raise EncodeError(f"the model has {size:,} bytes, and at most {form.MAX_MODEL_SIZE:,} can be read")
        return whole

    def _shardings_json(self) -> dict[int, Any]:
        """Return the shardings by reference: from 0 for tensors, and from -1 downwards for grown tensors, in order."""
        tensors, grown = len(self.tensors), len(self.grown)
        return {
            reference: sharding.to_json()
            for reference, sharding in self.shardings.items()
            if -grown <= reference < tensors  # the last records may have been lost
        }

    def _metadata(self, names: list[str]) -> Iterator[tuple[str, list[bytes]]]:
        """Iterate over the keys and values of the model's metadata, the values in parts."""
        rows = (
            _encode([name, dtype_name(entry.dtype), entry.shape, *(["zlib"] if entry.compressed else [])])
            for name, entry in zip(names, self.tensors, strict=True)
        )
        contents = {
            form.VERSION_KEY: form.VERSION,
            form.GROWN_KEY: self.grown,
            form.FAILED_KEY: [[key.name, key.iteration, exception] for key, exception in self.failed.items()],
            **({form.SHARDINGS_KEY: self._shardings_json()} if self.shardings else {}),
            form.MODULES_KEY: modules_json(self.modules),
            form.ENVIRONMENT_KEY: self.environment,
        }
        yield from ((key, [_encode(value).encode()]) for key, value in contents.items())
        yield form.TENSORS_KEY, _joined(rows)
        yield form.RECORDS_KEY, _joined(chunk[1:-1] for chunk in self._chunks)  # without the brackets of each list


def _joined(rows: Iterable[str]) -> list[bytes]:
    """Return the parts of a JSON list of rows."""
    parts = [part for row in rows for part in (b",", row.encode())]
    return [b"[", *parts[1:], b"]"]


def unique_names(names: Iterable[str]) -> list[str]:
    """Return the names with a number appended to repeated ones."""
    taken: dict[str, None] = {}
    for name in names:
        free, count = name, 0
        while free in taken:
            count += 1
            free = f"{name}~{count}"
        taken[free] = None
    return list(taken)


def _tensor_fields(
    name: str, entry: Entry, location: str | None, read: Callable[[int, int], bytes]
) -> tuple[bytes, bytes]:
    """Return the graph fields of a tensor: a Constant node and an output, with the same name."""
    # Encoded by hand: an object per node would take gigabytes for a million tensors (see `_protobuf`). Parts that are
    # the same for many tensors are cached.
    *_, dtype, shape, offset, size, compressed = entry
    onnx_type = TensorProto.UINT8 if compressed else CARRIERS[dtype].onnx_type
    dims = (size,) if compressed else (*shape, 2) if dtype.is_complex else shape  # complex numbers as pairs
    text = name.encode()
    name_field = protobuf.varint(len(text)) + text
    if location is None or size == 0:  # ONNX Runtime refuses external data of length 0
        head, kind = _shared_fields(onnx_type, dims, None)
        numbers = protobuf.field(form.RAW_DATA, read(offset, size))
    else:
        head, kind = _shared_fields(onnx_type, dims, (location, size))
        numbers = _external("offset", str(offset))
    attribute = _VALUE + protobuf.field(form.TENSOR, b"".join((head, _TENSOR_NAME, name_field, numbers)))
    node = b"".join(
        (_CONSTANT, _NODE_OUTPUT, name_field, _NODE_NAME, name_field, protobuf.field(form.ATTRIBUTE, attribute))
    )
    return protobuf.field(form.NODE, node), protobuf.field(form.OUTPUT, b"".join((kind, _OUTPUT_NAME, name_field)))


@functools.lru_cache(maxsize=4096)
def _shared_fields(onnx_type: int, dims: tuple[int, ...], external: tuple[str, int] | None) -> tuple[bytes, bytes]:
    """Return the encoded tensor header and value info that tensors of this type, shape, size and file share."""
    tensor = TensorProto(data_type=onnx_type, dims=dims).SerializeToString()
    if external is not None:
        location, size = external
        tensor += _external("location", location) + _external("length", str(size)) + _IS_EXTERNAL
    return tensor, onnx.ValueInfoProto(type=helper.make_tensor_type_proto(onnx_type, dims)).SerializeToString()


def _external(key: str, value: str) -> bytes:
    return protobuf.field(form.EXTERNAL_DATA, protobuf.field(1, key.encode()) + protobuf.field(2, value.encode()))


def modules_json(modules: dict[str, ModuleInfo]) -> dict[str, Any]:
    """Return the value of `filch.modules`."""
    tf32 = {name: {"tf32": sorted(info.tf32)} for name, info in modules.items() if info.tf32}
    return {
        name: {"class": info.type_name, "parameters": info.parameters, **tf32.get(name, {})}
        for name, info in modules.items()
    }


def module_info(info: Mapping[str, Any]) -> ModuleInfo:
    """Return what `modules_json` has written of a module.

    Raises:
        TypeError: a text is none.
        KeyError: an entry is missing.
    """
    texts = [info["class"], *info["parameters"], *info.get("tf32", ())]
    if any(type(text) is not str for text in texts):
        raise TypeError(f"{reprlib.repr(info)} does not describe a module")
    return ModuleInfo(
        info["class"],
        tuple(info["parameters"]),
        frozenset(product for product in Product if product in info.get("tf32", ())),
    )
