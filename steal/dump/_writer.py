"""Writes a dump: bytes and rows go to the disk while the model runs, the ONNX model around them at the end."""

import errno
import marshal
import math
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from google.protobuf.message import EncodeError

from .._errors import DumpError
from .._key import Key
from .._records import ModuleInfo, Origin
from ..values._foreign import Spec
from ..values._growth import concatenate
from ..values._raw import bytes_of, contiguous_cpu, no_modes_or_grad, tensor_of
from . import _format as form
from ._compression import pack, unpack
from ._files import Draft
from ._journal import heading, take_down
from ._model import Entry, Index, environment
from ._stream import Stream

BUFFER = 256 * 2**20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DumpWriter:
    """A store on disk (see `Store`); as a context manager it leaves a finished dump, or no file at all.

    Attributes:
        path: where the dump will be; absolute, as the block may change the working directory.
        error: what the disk refused with; what comes after it is not stored.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        modules: dict[str, ModuleInfo] | None = None,
        *,
        buffer: int = BUFFER,
        compress: bool = False,
    ) -> None:
        try:
            self.path = Path(path).absolute()
        except TypeError:
            raise DumpError(f"dump_file is a path like 'reference.onnx', not {path!r}") from None
        if not hasattr(os, "pwrite"):
            raise DumpError("dumps are written on systems of the Unix kind; without dump_file the capture is in memory")
        if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 1:
            raise DumpError(f"buffer is a number of bytes like 2**28, not {buffer!r}")
        try:
            is_folder = self.path.is_dir()
            is_other = not is_folder and self.path.exists() and not self.path.is_file()
        except OSError as error:  # a name that is too long
            raise self._refused(error) from error
        if is_folder or is_other:
            what = "a folder; add a name like 'reference.onnx'" if is_folder else "no regular file"
            raise DumpError(f"can't write a dump to {str(path)!r}: it is {what}")
        self.error: DumpError | None = None
        self.index = Index({} if modules is None else modules, environment())
        self._buffer = buffer
        self._compress = compress
        self._process = os.getpid()
        self._keep_drafts = False  # for `recover`

    def __enter__(self) -> Self:
        try:
            self._draft, self._data, self._journal = Draft.create(self.path, heading(self.index).encode())
        except (OSError, ValueError) as error:  # ValueError: a null character
            raise self._refused(error) from error
        self._direct = self._draft.open_direct()
        self._stream = Stream(self._data, self._direct, self._journal, partial(_taken_down, self.index), self._buffer)
        return self

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._process:  # forked in the block: the files are the other's
            return
        self._stream.close()
        os.close(self._journal)
        if self._direct is not None:
            os.close(self._direct)
        weakref.finalize(self, os.close, self._data)  # the capture reads on, whatever becomes of the file's name
        if not self._keep_drafts:
            self._draft.remove()

    @property
    def written(self) -> int:
        """How many records are with the operating system, so that a kill can't take them."""
        return self._stream.records

    @property
    def waited(self) -> float:
        """Seconds for which the model had to wait for the disk."""
        return self._stream.waited

    def put(self, tensor: torch.Tensor, key: Key, path: str) -> int:
        """Write the numbers of `tensor` as they are now; see `Store.put`."""
        if self._stream.error is not None:
            self._check()
        if tensor.is_cuda and not self._compress:
            offset, length = self._put_cuda(tensor)
        else:
            raw = tensor if tensor.is_cpu else contiguous_cpu(tensor)
            address, length = raw.data_ptr(), raw.nbytes
            if self._compress and length:
                smaller = np.frombuffer(pack(bytes_of(raw), raw.element_size()), dtype=np.uint8)
                address, length = smaller.ctypes.data, smaller.nbytes
            offset = self._stream.put(address, length, _alignment(length))
        name, iteration, kind = key
        packed = self._compress and length > 0
        entries = self.index.tensors
        entries.append(Entry(name, iteration, kind, path, tensor.dtype, tuple(tensor.shape), offset, length, packed))
        return len(entries) - 1

    def extend(self, first: int, tail: int, dim: int) -> int:
        """See `Store.extend`."""
        self.index.grown.append((first, tail, dim))
        return -len(self.index.grown)

    def get(self, reference: int) -> torch.Tensor:
        """Read a tensor back; see `Store.get`."""
        if reference < 0:
            return concatenate(reference, self.index.grown, self.get)
        entry = self.index.tensors[reference]
        self.flush()
        raw = self._bytes(entry.offset, entry.length)
        if len(raw) < entry.length:
            raise self.error or DumpError(f"the bytes of {entry.label!r} are not in {str(self.path)!r}")
        if entry.compressed:
            wanted = entry.dtype.itemsize * math.prod(entry.shape)
            raw = np.frombuffer(unpack(raw.data, wanted, entry.dtype.itemsize), np.uint8)
        return tensor_of(torch.from_numpy(raw) if len(raw) else None, entry.dtype, torch.Size(entry.shape))

    view = get  # what is on its way to a file is nowhere else

    def add(self, key: Key, spec: Spec, origin: Origin) -> None:
        """See `Store.add`."""
        index = self.index
        self._stream.then((*key, marshal.dumps(spec), len(index.tensors), len(index.grown), *origin))

    def rows(self, start: int) -> Iterable[Sequence[Any]]:
        """See `Store.rows`."""
        self.flush()
        return self.index.rows(start)

    def fail(self, key: Key, what: str) -> None:
        """See `Store.fail`."""
        self.index.failed[key] = what
        self._stream.then((key.name, key.iteration, what))

    def flush(self) -> int:
        """Wait until all records so far are with the operating system; returns how many are."""
        records = self._stream.flush()
        self._check()
        return records

    def close(self) -> None:
        """Write the model around the tensors and put the dump in its place; `get` reads on, whatever becomes of that.

        Raises:
            DumpError: the disk refuses. What it refused while the model ran is in `error` only, if the rest of the dump
                could be put in its place.
        """
        if os.getpid() != self._process:
            return
        self._stream.close()
        refused: Exception | None = self._stream.error
        if refused is not None:
            self.index.cut_to(self._stream.durable)
        try:
            refused = self._publish() or refused
        except (OSError, EncodeError, UnicodeError) as error:  # over 2 GiB of index; a name that ONNX can't have
            self._keep_drafts = True
            if not self._draft.data.exists():  # the folder is gone
                raise self._refused(error) from error
            left = self._refused(error, len(self.index.tops), self.index.end)
            raise DumpError(f"{left}; `filch recover` makes a dump of them when it can be written") from error
        if refused is not None:
            self.error = self._refused(refused, len(self.index.tops), self.index.end)

    def _publish(self) -> OSError | None:
        """Put the dump in its place, with less in it if the disk has no room for the model: then, what it said."""
        refused = None
        inline = sum(entry.length for entry in self.index.tensors) <= form.INLINE_LIMIT
        while True:
            try:
                publish(self._draft, self.index, self._data, inline=inline)
            except OSError as error:
                if error.errno not in _FULL or not self.index.tops:
                    raise
                if refused is not None or not inline:  # the journal's room first: it was for a kill
                    os.ftruncate(self._journal, 0)
                if refused is not None and not inline:
                    self.index.cut(len(self.index.tops) * 7 // 8)
                    os.ftruncate(self._data, self.index.end)
                refused, inline = error, False  # the bytes are on the disk already
            else:
                return refused

    def _check(self) -> None:
        if self._stream.error is not None and self.error is None:
            self.error = self._refused(self._stream.error)

    def _put_cuda(self, tensor: torch.Tensor) -> tuple[int, int]:
        with no_modes_or_grad():
            dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
            ours = dense.data_ptr() != tensor.data_ptr()
            flat = (torch.view_as_real(dense) if dense.is_complex() else dense).reshape(-1).view(torch.uint8)
        return self._stream.put_cuda(flat, _alignment(flat.numel()), ours=ours), flat.numel()

    def _bytes(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        """What is in the data file; read, as a map of it would count as memory of the process, by some limits."""
        raw, done = np.empty(length, np.uint8), 0
        while done < length and (size := os.preadv(self._data, [raw[done:].data], offset + done)):
            done += size  # Linux gives 2 GiB at a time
        return raw[:done]

    def _refused(self, error: Exception, records: int = 0, size: int = 0) -> DumpError:
        what = getattr(error, "strerror", None) or error
        after = f", after {size} bytes; the first {records} records are complete" if records else ""
        return DumpError(f"can't write a dump to {str(self.path)!r}: {what}{after}")


def _taken_down(index: Index, rows: list[tuple[Any, ...]]) -> tuple[str, int]:
    return take_down(index, rows), len(index.tops)


def publish(draft: Draft, index: Index, data: int, *, inline: bool) -> None:
    """Make a dump of a draft.

    Args:
        draft: its files; they stay.
        index: what is in them.
        data: the data file, open.
        inline: put the bytes into the model.

    Raises:
        OSError: the disk refuses.
    """
    if inline:
        mapped = mmap.mmap(data, index.end, access=mmap.ACCESS_READ) if index.end else b""
        draft.publish(index.model(None, lambda offset, length: mapped[offset : offset + length]), None)
        return
    place = draft.place_data()
    try:
        draft.publish(index.model(place.name, lambda _offset, _length: b""), place)
    except BaseException:
        draft.take_back(place)
        raise


def _alignment(nbytes: int) -> int:
    return form.PAGE if nbytes >= form.PAGE else form.ALIGNMENT
