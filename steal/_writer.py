"""Writes a dump: bytes and rows go to the disk while the model runs, the ONNX model around them at the end."""

import contextlib
import errno
import math
import mmap
import os
from pathlib import Path
from typing import Self

import numpy as np
import torch
from google.protobuf.message import EncodeError

from . import _format as form
from ._compression import pack, unpack
from ._errors import DumpError
from ._files import Draft
from ._growth import joined
from ._journal import entry_line, failed_line, heading, record_json
from ._key import Key
from ._model import Entry, Index, environment
from ._raw import bytes_of, plain, tensor_of, untouched
from ._records import ModuleInfo, Record
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
        if self.path.is_dir():
            raise DumpError(f"can't write a dump to {str(path)!r}: it is a folder; add a name like 'reference.onnx'")
        self.error: DumpError | None = None
        self.index = Index({} if modules is None else modules, environment())
        self._buffer = buffer
        self._compress = compress
        self._names: set[str] = set()
        self._told = 0, 0  # how many tensors, and grown ones, the journal has
        self._process = os.getpid()
        self._keep_drafts = False  # for `recover`
        self._mapped: mmap.mmap | bytes | None = None

    def __enter__(self) -> Self:
        try:
            self._draft, self._data, self._journal = Draft.create(self.path, heading(self.index).encode())
        except (OSError, ValueError) as error:  # ValueError: a null character
            raise self._refused(error) from error
        self._stream = Stream(self._data, self._journal, self._buffer)
        return self

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._process:  # forked in the block: the files are the other's
            return
        self._stream.close()
        for handle in (self._data, self._journal):
            with contextlib.suppress(OSError):
                os.close(handle)
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
        self._check()
        if tensor.is_cuda and not self._compress:
            offset, length = self._put_cuda(tensor)
        else:
            raw = tensor if tensor.is_cpu else plain(tensor)
            address, length = raw.data_ptr(), raw.nbytes
            if self._compress and length:
                packed = np.frombuffer(pack(bytes_of(raw), raw.element_size()), dtype=np.uint8)
                address, length = packed.ctypes.data, packed.nbytes
            offset = self._stream.put(address, length, _alignment(length))
        name = self._unique(key.place(path))
        self.index.tensors.append(
            Entry(name, tensor.dtype, tuple(tensor.shape), offset, length, self._compress and length > 0)
        )
        return len(self.index.tensors) - 1

    def extend(self, first: int, tail: int, dim: int) -> int:
        """See `Store.extend`."""
        self.index.grown.append((first, tail, dim))
        return -len(self.index.grown)

    def get(self, reference: int) -> torch.Tensor:
        """Read a tensor back; see `Store.get`."""
        if reference < 0:
            return joined(reference, self.index.grown, self.get)
        entry = self.index.tensors[reference]
        if self._mapped is None:
            self.flush()
        raw = self._bytes(entry.offset, entry.length)
        if len(raw) < entry.length:
            raise self.error or DumpError(f"the bytes of {entry.name!r} are not in {str(self.path)!r}")
        if entry.compressed:
            raw = unpack(raw, entry.dtype.itemsize * math.prod(entry.shape), entry.dtype.itemsize)
        flat = torch.frombuffer(raw, dtype=torch.uint8) if raw else None
        return tensor_of(flat, entry.dtype, torch.Size(entry.shape))

    def add(self, key: Key, record: Record) -> None:
        """See `Store.add`."""
        top, grown_top = len(self.index.tensors), len(self.index.grown)
        fresh, grown = self.index.tensors[self._told[0] : top], self.index.grown[self._told[1] : grown_top]
        self._told = top, grown_top
        spec, origin = record

        def row() -> str:
            text = record_json([*key, spec, *origin])
            self.index.records.append(text)
            self.index.tops.append((top, grown_top))
            return entry_line(fresh, grown, text)

        self._stream.then(row, records=1)

    def fail(self, key: Key, what: str) -> None:
        """See `Store.fail`."""
        self.index.failed[key] = what
        self._stream.then(lambda: failed_line(key, what))

    def flush(self) -> int:
        """Wait until all records so far are with the operating system; returns how many are."""
        return self._stream.flush()

    def close(self) -> None:
        """Write the model around the tensors and put the dump in its place; `get` reads on, whatever becomes of that.

        Raises:
            DumpError: the disk refuses. What it refused while the model ran is in `error` only, if the rest of the dump
                could be put in its place.
        """
        if os.getpid() != self._process:
            return
        self._stream.close()
        if self._stream.error is not None:
            self.index.cut_to(self._stream.durable)
            self.error = self._refused(self._stream.error)
        try:
            self._mapped = mmap.mmap(self._data, self.index.end, access=mmap.ACCESS_COPY) if self.index.end else b""
            self._publish()
        except OSError as error:
            self._keep_drafts = True
            raise self._refused(error) from error
        except EncodeError as error:
            self._keep_drafts = True
            count = len(self.index.tensors)
            what = f"the index of {count} tensors is over ONNX's 2 GiB"
            raise DumpError(f"can't write a dump to {str(self.path)!r}: {what}") from error

    def _publish(self) -> None:
        inline = sum(entry.length for entry in self.index.tensors) <= form.INLINE_LIMIT
        while True:
            try:
                publish(self._draft, self.index, self._data, inline=inline)
            except OSError as error:
                if error.errno not in _FULL or not self.index.records:
                    raise
                self.error = self.error or self._refused(error)
                if not inline:  # no room for the model: the end of the data makes some
                    self.index.cut(len(self.index.records) * 3 // 4)
                    os.ftruncate(self._data, self.index.end)
                inline = False  # the bytes are on the disk already
            else:
                return

    def _check(self) -> None:
        if self._stream.error is not None and self.error is None:
            self.error = self._refused(self._stream.error)

    def _put_cuda(self, tensor: torch.Tensor) -> tuple[int, int]:
        with untouched():
            dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
            ours = dense.data_ptr() != tensor.data_ptr()
            flat = (torch.view_as_real(dense) if dense.is_complex() else dense).reshape(-1).view(torch.uint8)
        return self._stream.put_cuda(flat, _alignment(flat.numel()), ours=ours), flat.numel()

    def _bytes(self, offset: int, length: int) -> bytearray | memoryview:
        """What is in the data file, as memory that may be written to; mapped once the block is over."""
        if self._mapped is not None:
            return memoryview(self._mapped)[offset : offset + length]
        raw, done = bytearray(length), 0
        while done < length and (size := os.preadv(self._data, [memoryview(raw)[done:]], offset + done)):
            done += size  # Linux gives 2 GiB at a time
        return raw[:done]

    def _refused(self, error: Exception) -> DumpError:
        what = getattr(error, "strerror", None) or error
        stream = getattr(self, "_stream", None)
        if stream is None:
            return DumpError(f"can't write a dump to {str(self.path)!r}: {what}")
        after = f"after {self.index.end} bytes; the first {len(self.index.records)} records are complete"
        return DumpError(f"can't write a dump to {str(self.path)!r}: {what}, {after}")

    def _unique(self, name: str) -> str:
        name = name.encode(errors="backslashreplace").decode()  # protobuf takes no lone surrogates
        unique, count = name, 0
        while unique in self._names:
            count += 1
            unique = f"{name}~{count}"
        self._names.add(unique)
        return unique


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
        model = index.model(None, lambda offset, length: mapped[offset : offset + length])
        draft.publish(model.SerializeToString(), None)
        return
    place = draft.place_data()
    try:
        draft.publish(index.model(place.name, lambda _offset, _length: b"").SerializeToString(), place)
    except BaseException:
        place.unlink(missing_ok=True)
        raise


def _alignment(nbytes: int) -> int:
    return form.PAGE if nbytes >= form.PAGE else form.ALIGNMENT
