"""The ONNX model of a dump: what is known of its tensors and records, and the file that says it."""

import bisect
import functools
import itertools
import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import onnx
import torch
from google.protobuf.message import EncodeError
from onnx import AttributeProto, TensorProto, helper

from .._key import Key
from .._records import ModuleInfo
from ..values._dtypes import CARRIERS, dtype_name
from . import _format as form
from . import _protobuf as wire

# How the fields begin that are the name of a tensor, node or output, or a node's output; and those that are the same in
# all nodes.
_TENSOR_NAME, _NODE_NAME, _OUTPUT_NAME, _NODE_OUTPUT = b"\x42", b"\x1a", b"\x0a", b"\x12"
_CONSTANT = onnx.NodeProto(op_type="Constant").SerializeToString()
_VALUE = AttributeProto(name="value", type=AttributeProto.TENSOR).SerializeToString()
_IS_EXTERNAL = TensorProto(data_location=TensorProto.EXTERNAL).SerializeToString()


class Entry(NamedTuple):
    """A tensor of a dump and where its bytes are in the data file.

    Attributes:
        name: of the key that it was first taken for.
        iteration: likewise.
        kind: likewise.
        path: where it stood in the value.
        dtype: its torch dtype.
        shape: its shape.
        offset: its first byte.
        length: its bytes, as they are stored.
        compressed: whether they are compressed.
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
    def label(self) -> str:
        """What its node and the graph's output are called."""
        label = Key(self.name, self.iteration, self.kind).place(self.path)
        return label if label.isascii() else label.encode(errors="backslashreplace").decode()  # no lone surrogates


@dataclass
class Index:
    """All of a dump but the numbers.

    Attributes:
        modules: what is known of each stolen module.
        environment: see `environment`.
        tensors: in the order of the file.
        grown: what tensors that were kept in parts begin with, what follows, and along which dimension.
        tops: for each record, how many tensors there were when it was complete, and how many in parts.
        failed: the calls that raised.
    """

    modules: dict[str, ModuleInfo]
    environment: dict[str, str]
    tensors: list[Entry] = field(default_factory=list)
    grown: list[tuple[int, int, int]] = field(default_factory=list)
    tops: list[tuple[int, int]] = field(default_factory=list)
    failed: dict[Key, str] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)  # how many records there are up to the end of each text

    @property
    def top(self) -> tuple[int, int]:
        """How many tensors the records need, and how many in parts."""
        return self.tops[-1] if self.tops else (0, 0)

    def add(self, records: str, tops: Sequence[tuple[int, int]]) -> None:
        """Add records: their rows as JSON, and for each how many tensors there are up to it."""
        if tops:
            self.tops += tops
            self._texts.append(records)
            self._ends.append(len(self.tops))

    def rows(self, start: int) -> Iterator[list[Any]]:
        """The rows of the records from number `start` on."""
        first = bisect.bisect_right(self._ends, start)
        skip = start - (self._ends[first - 1] if first else 0)
        listed = itertools.chain.from_iterable(map(json.loads, self._texts[first:]))
        return itertools.islice(listed, skip, None)

    def cut(self, records: int) -> None:
        """Keep the first `records` records, and the tensors that they need."""
        kept = list(itertools.islice(self.rows(0), records))
        tops = self.tops[:records]
        self.tops, self._texts, self._ends = [], [], []
        self.add(json.dumps(kept), tops)
        del self.tensors[self.top[0] :], self.grown[self.top[1] :]

    def cut_to(self, size: int) -> None:
        """Keep the records that are whole in a data file of `size` bytes: the first ones."""
        fit = next((index for index, entry in enumerate(self.tensors) if _end(entry) > size), len(self.tensors))
        self.cut(bisect.bisect_right([tensors for tensors, _ in self.tops], fit))

    @property
    def end(self) -> int:
        """How long the data file has to be."""
        return max(map(_end, self.tensors), default=0)

    def model(self, location: str | None, read: Callable[[int, int], bytes]) -> bytes:
        """The model, serialized.

        Args:
            location: the data file's name; None to have the bytes inside of the model.
            read: gives the bytes at an offset, of a length.

        Raises:
            EncodeError: it is more than protobuf can hold.
        """
        names = unique(entry.label for entry in self.tensors)
        parts = [
            part for name, entry in zip(names, self.tensors, strict=True) for part in _add(name, entry, location, read)
        ]
        if not self.tensors:  # ONNX Runtime refuses a graph without nodes
            parts = list(_add("(no tensor)", Entry("", 0, "", "", torch.uint8, (0,), 0, 0), None, read))
        graph = onnx.GraphProto(name="filch.dump").SerializeToString() + b"".join(parts)
        opsets = [helper.make_opsetid("", form.OPSET)]
        model = onnx.ModelProto(ir_version=form.IR_VERSION, producer_name="filch", opset_import=opsets)
        helper.set_model_props(model, self._metadata(names))
        whole: bytes = model.SerializeToString() + wire.field(form.GRAPH, graph)
        if len(whole) >= form.LARGEST:
            raise EncodeError(f"the model without the tensors has {len(whole)} bytes, and protobuf can hold 2 GiB")
        return whole

    def _metadata(self, names: list[str]) -> dict[str, str]:
        rows = [
            [name, dtype_name(entry.dtype), entry.shape, *(["zlib"] if entry.compressed else [])]
            for name, entry in zip(names, self.tensors, strict=True)
        ]
        contents = {
            form.VERSION_KEY: form.VERSION,
            form.TENSORS_KEY: rows,
            form.GROWN_KEY: self.grown,
            form.FAILED_KEY: [[key.name, key.iteration, what] for key, what in self.failed.items()],
            form.MODULES_KEY: known_modules(self.modules),
            form.ENVIRONMENT_KEY: self.environment,
        }
        return {
            **{key: json.dumps(value) for key, value in contents.items()},
            form.RECORDS_KEY: f"[{','.join(text[1:-1] for text in self._texts)}]",
        }


def _end(entry: Entry) -> int:
    return entry.offset + entry.length


def unique(names: Iterable[str]) -> list[str]:
    """The names, with a number at the end of those that were there before."""
    found: dict[str, None] = {}
    for name in names:
        free, count = name, 0
        while free in found:
            count += 1
            free = f"{name}~{count}"
        found[free] = None
    return list(found)


def _add(name: str, entry: Entry, location: str | None, read: Callable[[int, int], bytes]) -> tuple[bytes, bytes]:
    """The fields of a graph that a tensor is: a node, a Constant, and an output, called alike."""
    # By hand: with an object for each, a million tensors take gigabytes (see `_wire`). What is the same for many is
    # made once, and the name with its length as well.
    *_, dtype, shape, offset, size, compressed = entry
    onnx_type = TensorProto.UINT8 if compressed else CARRIERS[dtype].onnx_type
    dims = (size,) if compressed else (*shape, 2) if dtype.is_complex else shape
    text = name.encode()
    called = wire.varint(len(text)) + text
    if location is None or size == 0:  # ONNX Runtime refuses external data of length 0
        head, kind = _forms(onnx_type, dims, None)
        numbers = wire.field(form.RAW_DATA, read(offset, size))
    else:
        head, kind = _forms(onnx_type, dims, (location, size))
        numbers = _external("offset", str(offset))
    attribute = _VALUE + wire.field(form.TENSOR, b"".join((head, _TENSOR_NAME, called, numbers)))
    node = b"".join((_CONSTANT, _NODE_OUTPUT, called, _NODE_NAME, called, wire.field(form.ATTRIBUTE, attribute)))
    return wire.field(form.NODE, node), wire.field(form.OUTPUT, b"".join((kind, _OUTPUT_NAME, called)))


@functools.lru_cache(maxsize=4096)
def _forms(onnx_type: int, dims: tuple[int, ...], outside: tuple[str, int] | None) -> tuple[bytes, bytes]:
    """What nodes and outputs have in common for tensors of this type and shape, so long, in this file."""
    tensor = TensorProto(data_type=onnx_type, dims=dims).SerializeToString()
    if outside is not None:
        location, size = outside
        tensor += _external("location", location) + _external("length", str(size)) + _IS_EXTERNAL
    return tensor, onnx.ValueInfoProto(type=helper.make_tensor_type_proto(onnx_type, dims)).SerializeToString()


def _external(key: str, value: str) -> bytes:
    return wire.field(form.EXTERNAL_DATA, wire.field(1, key.encode()) + wire.field(2, value.encode()))


def known_modules(modules: dict[str, ModuleInfo]) -> dict[str, Any]:
    """How `filch.modules` has them."""
    return {name: {"class": info.type_name, "parameters": info.parameters} for name, info in modules.items()}


def environment() -> dict[str, str]:
    """What a person wants to know of the run that made a file: versions, system, time (UTC, ISO 8601)."""
    return {
        "torch": torch.__version__,
        "onnx": onnx.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
