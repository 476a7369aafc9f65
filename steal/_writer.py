"""Writes a dump: bytes go to the disk while the model runs, the ONNX model around them at the end."""

import contextlib
import itertools
import json
import os
import platform
import re
import tempfile
import time
from pathlib import Path
from typing import BinaryIO, Self

import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from . import _format as form
from ._dtypes import CARRIERS, dtype_name, from_carrier, to_carrier
from ._errors import DumpError
from ._key import Key
from ._records import ModuleInfo, Record
from ._structure import Spec


class DumpWriter:
    """A store on disk (see `Store`); as a context manager it leaves a finished dump, or no file at all.

    Everything is written under a temporary name in the same folder and renamed at the end, the model last, so that a
    dump that is there is whole, and one that was there before stays until then.

    Attributes:
        path: where the dump will be; absolute, as the block may change the working directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self.path = Path(path).absolute()
        except TypeError:
            raise DumpError(f"dump_file is a path like 'reference.onnx', not {path!r}") from None
        if self.path.is_dir():
            raise DumpError(f"can't write a dump to {str(path)!r}: it is a folder; add a name like 'reference.onnx'")
        self._tensors: list[tuple[str, torch.dtype, torch.Size]] = []
        self._spans: list[tuple[int, int]] = []  # offset and length in the data file
        self._records: list[list[Spec]] = []
        self._names: set[str] = set()
        self._file: BinaryIO
        self._temporary: Path

    def __enter__(self) -> Self:
        try:
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        except (OSError, ValueError) as error:  # ValueError: a null character
            raise self._refused(error) from error
        self._file, self._temporary = os.fdopen(handle, "w+b"), Path(name)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the disk may be full still
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def put(self, tensor: torch.Tensor, name: str) -> Spec:
        """Write the numbers of `tensor` as they are now; see `Store.put`."""
        raw = to_carrier(tensor).reshape(-1).view(torch.uint8).numpy()
        try:
            end = self._file.seek(0, os.SEEK_END)
            offset = _align(end, form.PAGE if raw.nbytes >= form.PAGE else form.ALIGNMENT)
            self._file.write(b"\0" * (offset - end))
            self._file.write(raw.data)
        except OSError as error:
            raise self._refused(error) from error
        self._tensors.append((self._unique(name), tensor.dtype, tensor.shape))
        self._spans.append((offset, raw.nbytes))
        return len(self._tensors) - 1

    def get(self, reference: Spec) -> torch.Tensor:
        """Read a tensor back; see `Store.get`."""
        _, dtype, shape = self._tensors[reference]
        raw = torch.frombuffer(bytearray(self._bytes(reference)), dtype=torch.uint8) if shape.numel() else None
        return tensor_of(raw, dtype, shape)

    def add(self, key: Key, record: Record) -> None:
        """See `Store.add`."""
        origin = record.origin
        self._records.append([*key, record.spec, origin.path, origin.call, origin.iteration])

    def close(self, modules: dict[str, ModuleInfo]) -> None:
        """Write the model around the tensors and put the dump in its place.

        Raises:
            DumpError: the disk refuses.
        """
        external = sum(length for _, length in self._spans) > form.INLINE_LIMIT
        data = self._free_name() if external else None
        try:
            self._file.flush()
            model = self._model(modules, data.name if data else None)
            if data:
                self._temporary.chmod(0o666 & ~_umask())
                self._temporary.replace(data)
            stale = self._data_of_former()
            _write(self.path, model.SerializeToString())
        except OSError as error:
            if data:
                data.unlink(missing_ok=True)
            raise self._refused(error) from error
        if stale:
            with contextlib.suppress(OSError):  # dead weight, no more
                stale.unlink(missing_ok=True)

    def _refused(self, error: OSError | ValueError) -> DumpError:
        return DumpError(f"can't write a dump to {str(self.path)!r}: {getattr(error, 'strerror', None) or error}")

    def _free_name(self) -> Path:
        """A data file that nobody has: not the former dump's, which must last until the new one is there."""
        names = (f"{self.path.name}.{count}.data" if count else f"{self.path.name}.data" for count in itertools.count())
        return next(path for path in map(self.path.with_name, names) if not path.exists())

    def _data_of_former(self) -> Path | None:
        """The data file of the dump that stands at `path` until now: without it, that file is dead weight."""
        model = onnx.ModelProto()
        try:
            model.ParseFromString(self.path.read_bytes() if self.path.stat().st_size <= form.LARGEST else b"")
        except (OSError, DecodeError):
            return None
        if form.VERSION_KEY not in form.metadata(model):
            return None
        places = (entry for node in model.graph.node for item in node.attribute for entry in item.t.external_data)
        names = (entry.value for entry in places if entry.key == "location")
        ours = re.compile(re.escape(self.path.name) + r"(\.\d+)?\.data")
        return next((self.path.with_name(name) for name in names if ours.fullmatch(name)), None)

    def _bytes(self, index: int) -> bytes:
        self._file.flush()
        offset, length = self._spans[index]
        return os.pread(self._file.fileno(), length, offset)

    def _unique(self, name: str) -> str:
        name = name.encode(errors="backslashreplace").decode()  # protobuf takes no lone surrogates
        unique, count = name, 0
        while unique in self._names:
            count += 1
            unique = f"{name}~{count}"
        self._names.add(unique)
        return unique

    def _model(self, modules: dict[str, ModuleInfo], location: str | None) -> onnx.ModelProto:
        graph = onnx.GraphProto(name="filch.dump")
        for index, (name, dtype, shape) in enumerate(self._tensors):
            carrier = CARRIERS[dtype]
            dims = [*shape, 2] if dtype.is_complex else list(shape)
            proto = TensorProto(name=name, dims=dims, data_type=carrier.onnx_type)
            offset, length = self._spans[index]
            if location is None or length == 0:  # ONNX Runtime refuses external data of length 0
                proto.raw_data = self._bytes(index)
            else:
                proto.data_location = TensorProto.EXTERNAL
                for key, value in (("location", location), ("offset", offset), ("length", length)):
                    proto.external_data.add(key=key, value=str(value))
            graph.node.append(helper.make_node("Constant", [], [name], name=name, value=proto))
            graph.output.append(helper.make_tensor_value_info(name, carrier.onnx_type, dims))
        opsets = [helper.make_opsetid("", form.OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=form.IR_VERSION, producer_name="filch")
        helper.set_model_props(model, self._metadata(modules))
        return model

    def _metadata(self, modules: dict[str, ModuleInfo]) -> dict[str, str]:
        known = {name: {"class": info.type_name, "parameters": info.parameters} for name, info in modules.items()}
        contents = {
            form.VERSION_KEY: form.VERSION,
            form.TENSORS_KEY: [[name, dtype_name(dtype), list(shape)] for name, dtype, shape in self._tensors],
            form.RECORDS_KEY: self._records,
            form.MODULES_KEY: known,
            form.ENVIRONMENT_KEY: environment(),
        }
        return {key: json.dumps(value) for key, value in contents.items()}


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


def tensor_of(raw: torch.Tensor | None, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Bytes (uint8, 1-d; None for an empty tensor) as a tensor of `dtype` and `shape`, sharing memory."""
    carrier = CARRIERS[dtype].view
    dims = (*shape, 2) if dtype.is_complex else tuple(shape)
    # On the CPU by name: the caller may have set another default device.
    plain = torch.empty(dims, dtype=carrier, device="cpu") if raw is None else raw.view(carrier).reshape(dims)
    return from_carrier(plain, dtype)


def _align(offset: int, to: int) -> int:
    return -(-offset // to) * to


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write(path: Path, contents: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(contents)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
