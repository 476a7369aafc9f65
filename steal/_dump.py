"""Reads a dump: nothing but the index at first, a tensor's bytes when it is asked for."""

import json
import math
import mmap
import os
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import TensorProto

from . import _format as form
from ._dtypes import CARRIERS, dtype_of
from ._errors import DAMAGE, DumpError
from ._key import Key
from ._records import ModuleInfo, Origin, Record, Records
from ._structure import Spec, decode
from ._writer import tensor_of


class Dump(Records):
    """A dump on disk: a mapping from key to value that reads a value when it is asked for.

    Attributes:
        environment: versions and time of the run that made it.
        tensors: name, dtype and shape of each tensor.
    """

    environment: dict[str, str]
    tensors: list[tuple[str, str, tuple[int, ...]]]

    def nbytes(self, key: Any) -> int:
        """The bytes of the tensors that the record holds; none is read for it."""
        sizes: list[int] = []

        def count(reference: Spec) -> torch.Tensor:
            _, dtype, shape = self.tensors[reference]
            known = dtype_of(dtype)
            sizes.append(math.prod(shape) * (known.itemsize if known else 0))
            return torch.empty(0, device="cpu")

        decode(self.records[key].spec, count)
        return sum(sizes)


def restore(path: str | os.PathLike[str]) -> Dump:
    """Open a dump.

    Args:
        path: what `steal_forward(dump_file=…)` wrote.

    Returns:
        the dump, with the keys, order and nesting of the capture. Tensors are on the CPU; those of a large dump are
        mapped from the file, privately: writing to one does not reach the file.

    Raises:
        DumpError: there is no such file, it is not a dump, or it is damaged.
    """
    where = Path(path)
    model = _load(where)
    props = form.metadata(model)
    if form.VERSION_KEY not in props:
        raise DumpError(f"{str(where)!r} is an ONNX model, but no dump: steal_forward(dump_file=…) writes dumps")
    if props[form.VERSION_KEY] != str(form.VERSION):
        raise DumpError(f"{str(where)!r} has format {props[form.VERSION_KEY]}; this Filch reads format {form.VERSION}")
    keys = (form.TENSORS_KEY, form.RECORDS_KEY, form.MODULES_KEY, form.ENVIRONMENT_KEY)
    try:
        table, rows, known, environment = (json.loads(props[key]) for key in keys)
        tensors = [(str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape in table]
        records = dict(map(_record, rows))
        modules = {
            name: ModuleInfo(str(info["class"]), tuple(map(str, info["parameters"]))) for name, info in known.items()
        }
        dump = Dump(records, modules, _Reader(where, model, tensors), str(where))
        dump.tensors = tensors
        dump.environment = {name: str(value) for name, value in environment.items()}
    except DAMAGE as error:
        raise DumpError(f"the index of {str(where)!r} is damaged: {error}") from error
    return dump


def _record(row: Spec) -> tuple[Key, Record]:
    name, iteration, kind, spec, path, call, count = row
    origin = Origin(None if path is None else str(path), None if call is None else int(call), int(count))
    return Key(str(name), int(iteration), str(kind)), Record(spec, origin)


def _load(path: Path) -> onnx.ModelProto:
    try:
        if path.stat().st_size > form.LARGEST:
            raise DumpError(f"{str(path)!r} is not an ONNX file: those are never larger than 2 GiB")
        contents = path.read_bytes()
    except FileNotFoundError:
        raise DumpError(f"there is no file {str(path)!r}") from None
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise DumpError(f"can't read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(contents)
    except DecodeError:
        raise DumpError(f"{str(path)!r} is not an ONNX file, or it is cut short") from None
    if not model.HasField("graph"):
        raise DumpError(f"{str(path)!r} is not an ONNX file, or it is cut short")
    return model


class _Reader:
    """The tensors of one dump."""

    def __init__(self, path: Path, model: onnx.ModelProto, table: list[tuple[str, str, tuple[int, ...]]]) -> None:
        self._path = path
        self._protos = {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}
        self._table = table
        # At once, before another dump takes this one's place: a file that is mapped stays what it was.
        places = (entry for proto in self._protos.values() for entry in proto.external_data if entry.key == "location")
        self._maps = {location: self._map(location) for location in {entry.value for entry in places}}

    def get(self, reference: Spec) -> torch.Tensor:
        """The tensor at this place of the index; see `Holder`."""
        if not isinstance(reference, int) or not 0 <= reference < len(self._table):
            raise DumpError(f"{str(self._path)!r} refers to a tensor that is not in it: {reference!r}")
        name, dtype_name, dims = self._table[reference]
        proto, dtype = self._protos.get(name), dtype_of(dtype_name)
        if proto is None or dtype is None:
            raise DumpError(f"{str(self._path)!r} has no tensor {name!r} of a known dtype")
        shape = torch.Size(dims)
        wanted = math.prod([*shape, 2] if dtype.is_complex else shape) * CARRIERS[dtype].view.itemsize
        raw = self._bytes(name, proto)
        if len(raw) != wanted:
            raise DumpError(f"{str(self._path)!r}: tensor {name!r} has {len(raw)} bytes where its shape wants {wanted}")
        return tensor_of(torch.frombuffer(raw, dtype=torch.uint8) if wanted else None, dtype, shape)

    def _bytes(self, name: str, proto: TensorProto) -> bytearray | memoryview:
        if proto.data_location != TensorProto.EXTERNAL:
            return bytearray(proto.raw_data)
        place = {entry.key: entry.value for entry in proto.external_data}
        try:
            location, offset, length = place["location"], int(place["offset"]), int(place["length"])
        except (KeyError, ValueError) as error:
            raise DumpError(f"{str(self._path)!r} does not say where the bytes of {name!r} are") from error
        mapped = self._maps[location]
        if offset < 0 or length < 0 or offset + length > len(mapped):
            where = f"{location!r} beside {str(self._path)!r}"
            raise DumpError(f"{where} is cut short: the bytes of {name!r} are not in it")
        return memoryview(mapped)[offset : offset + length]

    def _map(self, location: str) -> mmap.mmap:
        if location in ("", ".", "..") or Path(location).name != location:
            raise DumpError(f"{str(self._path)!r} points outside its folder: {location!r}")
        try:
            with (self._path.parent / location).open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise DumpError(f"can't read {location!r}, the data of {str(self._path)!r}: {error}") from error
