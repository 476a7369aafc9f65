"""The ONNX model of a dump: what is known of its tensors and records, and the file that says it."""

import bisect
import itertools
import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import onnx
import torch
from onnx import AttributeProto, TensorProto, helper

from . import _format as form
from ._dtypes import CARRIERS, dtype_name
from ._key import Key
from ._records import ModuleInfo


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

    def model(self, location: str | None, read: Callable[[int, int], bytes]) -> onnx.ModelProto:
        """The model.

        Args:
            location: the data file's name; None to have the bytes inside of the model.
            read: gives the bytes at an offset, of a length.
        """
        graph = onnx.GraphProto(name="filch.dump")
        names = unique(entry.label for entry in self.tensors)
        for name, entry in zip(names, self.tensors, strict=True):
            _add(graph, name, entry, location, read)
        if not self.tensors:  # ONNX Runtime refuses a graph without nodes
            _add(graph, "(no tensor)", Entry("", 0, "", "", torch.uint8, (0,), 0, 0), None, read)
        opsets = [helper.make_opsetid("", form.OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=form.IR_VERSION, producer_name="filch")
        helper.set_model_props(model, self._metadata(names))
        return model

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


def _add(
    graph: onnx.GraphProto, name: str, entry: Entry, location: str | None, read: Callable[[int, int], bytes]
) -> None:
    # The messages themselves: `helper.make_node` takes ten times as long, and a dump may have a million tensors.
    *_, dtype, shape, offset, length, compressed = entry
    onnx_type = TensorProto.UINT8 if compressed else CARRIERS[dtype].onnx_type
    dims = (length,) if compressed else (*shape, 2) if dtype.is_complex else shape
    node = graph.node.add(op_type="Constant", name=name, output=[name])
    proto = node.attribute.add(name="value", type=AttributeProto.TENSOR).t
    proto.name, proto.data_type = name, onnx_type
    proto.dims.extend(dims)
    if location is None or length == 0:  # ONNX Runtime refuses external data of length 0
        proto.raw_data = read(offset, length)
    else:
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", length)):
            proto.external_data.add(key=key, value=str(value))
    output = graph.output.add(name=name).type.tensor_type
    output.elem_type = onnx_type
    output.shape.SetInParent()  # a scalar has a shape, without dims
    for dim in dims:
        output.shape.dim.add(dim_value=dim)


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
