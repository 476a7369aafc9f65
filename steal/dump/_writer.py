"""Write a dump: tensor data and journal while the model runs, the ONNX model at the end."""

import math
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from google.protobuf.message import EncodeError

from .._errors import DumpError
from .._key import Key, PlainKey
from .._records import ModuleInfo, Origin
from ..files._outputs import has_no_room, write_problem
from ..values._growth import concatenate
from ..values._packed import Packed
from ..values._raw import bytes_of, contiguous_cpu, no_modes_or_grad, tensor_from_bytes
from . import _format as form
from ._compression import compress_bytes, decompress_bytes
from ._environment import environment
from ._files import Draft
from ._journal import header, journal_lines
from ._model import Entry, Index
from ._stream import Stream

BUFFER = 256 * 2**20


class DumpWriter:
    """A store on disk (see `Store`); a context manager that leaves a complete dump or no file at all.

    Attributes:
        path: the absolute path of the dump, as the block may change the working directory.
        error: the first error from writing; nothing later is stored.
    """

    def __init__(
        self, path: str | os.PathLike[str], modules: dict[str, ModuleInfo], *, buffer: int, compress: bool
    ) -> None:
        try:
            self.path = Path(path).absolute()
        except TypeError:
            raise DumpError(f"dump_file must be a path like 'reference.onnx', not {path!r}") from None
        if not hasattr(os, "pwrite"):
            raise DumpError("dump_file needs os.pwrite (Linux or macOS); omit dump_file to capture in memory")
        if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 1:
            raise DumpError(f"buffer must be a positive number of bytes like 2**28, not {buffer!r}")
        try:
            is_folder = self.path.is_dir()
            is_other = not is_folder and self.path.exists() and not self.path.is_file()
        except OSError as error:  # the name is too long
            raise self._dump_error(error) from error
        if is_folder or is_other:
            what = "a folder; add a name like 'reference.onnx'" if is_folder else "not a regular file"
            raise DumpError(f"can't write a dump to {str(path)!r}: it is {what}")
        self.error: DumpError | None = None
        self.index = Index(modules, environment(info.type_name for info in modules.values()))
        self._buffer = buffer
        self._compress = compress
        self._process = os.getpid()
        self._keep_drafts = False  # for `recover`

    def __enter__(self) -> Self:
        try:
            self._draft, self._data, self._journal = Draft.create(self.path, header(self.index))
        except (OSError, ValueError) as error:  # ValueError: a null character
            raise self._dump_error(error) from error
        self._direct = self._draft.open_direct()
        index = self.index

        def render(rows: list[tuple[Any, ...]]) -> tuple[str, int]:
            return journal_lines(index, rows), len(index.tensor_counts)

        self._stream = Stream(self._data, self._direct, self._journal, render, self._buffer)
        return self

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._process:  # forked inside the block: the files belong to the parent
            return
        self._stream.close()
        os.close(self._journal)
        if self._direct is not None:
            os.close(self._direct)
        weakref.finalize(self, os.close, self._data)  # the capture still reads the file, even once it is unlinked
        if not self._keep_drafts:
            self._draft.remove()

    @property
    def waited(self) -> float:
        """Seconds for which the model waited for the disk."""
        return self._stream.waited

    def put(self, tensor: torch.Tensor, key: Key, path: str) -> int:
        """Write the data of `tensor` as it is now; see `Store.put`."""
        self._update_error()
        if tensor.is_cuda and not self._compress:
            offset, length = self._put_cuda(tensor)
        else:
            raw = tensor if tensor.is_cpu else contiguous_cpu(tensor)
            address, length = raw.data_ptr(), raw.nbytes
            if self._compress and length:
                output = np.frombuffer(compress_bytes(bytes_of(raw), raw.element_size()), dtype=np.uint8)
                address, length = output.ctypes.data, output.nbytes
            offset = self._stream.put(address, length, _alignment(length))
        name, iteration, kind = key
        entries, shape = self.index.tensors, tuple(tensor.shape)
        is_compressed = self._compress and length > 0
        entries.append(Entry(name, iteration, kind, path, tensor.dtype, shape, offset, length, is_compressed))
        return len(entries) - 1

    def put_small(self, data: bytes, dtype: torch.dtype, shape: tuple[int, ...], key: PlainKey, path: str) -> int:
        """See `Store.put_small`."""
        self._update_error()
        is_compressed = self._compress and len(data) > 0
        if is_compressed:
            data = compress_bytes(memoryview(data), dtype.itemsize)
        length, entries = len(data), self.index.tensors
        offset = self._stream.put_bytes(data, _alignment(length))
        entries.append(Entry(*key, path, dtype, shape, offset, length, is_compressed))
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
        raw = self._read_bytes(entry.offset, entry.length)
        if len(raw) < entry.length:
            raise self.error or DumpError(f"the bytes of {entry.label!r} are not in {str(self.path)!r}")
        if entry.compressed:
            nbytes = entry.dtype.itemsize * math.prod(entry.shape)
            raw = np.frombuffer(decompress_bytes(raw.data, nbytes, entry.dtype.itemsize), np.uint8)
        return tensor_from_bytes(torch.from_numpy(raw) if len(raw) else None, entry.dtype, torch.Size(entry.shape))

    view = get  # the data has no other copy in memory

    def add(self, key: PlainKey, packed: Packed, origin: Origin) -> None:
        """See `Store.add`."""
        index = self.index
        self._update_error()
        self._stream.put_row((*key, packed, len(index.tensors), len(index.grown), *origin))

    def rows(self, start: int) -> Iterable[Sequence[Any]]:
        """See `Store.rows`."""
        self.flush()
        return self.index.rows(start)

    def add_failure(self, key: Key, exception: str) -> None:
        """See `Store.add_failure`."""
        self._update_error()
        if self.error is None:
            self.index.failed[key] = exception
            self._stream.put_row((key.name, key.iteration, exception))

    def flush(self) -> int:
        """Wait until all records so far are written to the operating system; return their number."""
        records = self._stream.flush()
        self._update_error()
        return records

    def close(self) -> None:
        """Write the model and publish the dump; `get` still works afterwards.

        Raises:
            DumpError: the dump can't be written. If only records were lost, because the disk refused them during the
                run, a dump of the earlier records is written, and `error` has the reason.
        """
        if os.getpid() != self._process:  # forked, as in `__exit__`
            return
        self._stream.close()
        error: Exception | None = self._stream.error or self.index.refusal
        if error is not None:
            self.index.truncate_to_size(self._stream.written)
        try:
            error = self._publish() or error
        except (OSError, EncodeError, UnicodeError) as failure:  # UnicodeError: the path isn't Unicode
            self._keep_drafts = bool(self.index.tensor_counts)
            if not self._keep_drafts or not self._draft.data.exists():  # the folder was removed
                raise self._dump_error(failure) from failure
            reason = self._dump_error(failure, len(self.index.tensor_counts), self.index.end)
            raise DumpError(f"{reason}; `filch recover` makes a dump of them once it can be written") from failure
        if error is not None:
            self.error = self._dump_error(error, len(self.index.tensor_counts), self.index.end)

    def _publish(self) -> Exception | None:
        """Publish the dump, with fewer records if the disk or protobuf has no room for all; then return that error."""
        problem: Exception | None = None
        inline = sum(entry.length for entry in self.index.tensors) <= form.INLINE_LIMIT
        while True:
            try:
                publish(self._draft, self.index, self._data, inline=inline)
            except (OSError, EncodeError) as error:
                is_full = isinstance(error, EncodeError) or has_no_room(error)
                if not is_full or not self.index.tensor_counts:
                    raise
                if problem is not None or not inline:  # first use the journal's room, which was for a kill
                    os.ftruncate(self._journal, 0)
                if problem is not None and not inline:
                    self.index.truncate(len(self.index.tensor_counts) * 7 // 8)  # then leave out the last records
                    os.ftruncate(self._data, self.index.end)
                problem, inline = error, False  # external data is on the disk already
            else:
                return problem

    def _update_error(self) -> None:
        """Set `error` if writing has failed."""
        error = self._stream.error or self.index.refusal
        if error is not None and self.error is None:
            self.error = self._dump_error(error)

    def _put_cuda(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Write a CUDA tensor; return the offset and the number of its bytes."""
        with no_modes_or_grad():
            dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
            is_unshared = dense.data_ptr() != tensor.data_ptr()
            flat = (torch.view_as_real(dense) if dense.is_complex() else dense).reshape(-1).view(torch.uint8)
        return self._stream.put_cuda(flat, _alignment(flat.numel()), is_unshared=is_unshared), flat.numel()

    def _read_bytes(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        """Read from the data file, at most to its end; without mmap, as `ulimit -v` and other limits count mappings."""
        raw, done = np.empty(length, np.uint8), 0
        while done < length and (size := os.preadv(self._data, [raw[done:].data], offset + done)):
            done += size  # Linux reads at most 2 GiB at a time
        return raw[:done]

    def _dump_error(self, error: Exception, records: int = 0, size: int = 0) -> DumpError:
        after = f", after {size} bytes; the first {records} records are complete" if records else ""
        return DumpError(f"can't write a dump to {str(self.path)!r}: {write_problem(error, self.path)}{after}")


def publish(draft: Draft, index: Index, data: int, *, inline: bool) -> None:
    """Publish a draft as a dump.

    Args:
        draft: the draft files; they are kept.
        index: the index of their contents.
        data: descriptor of the data file.
        inline: store the data in the model.

    Raises:
        OSError: the dump can't be written.
    """
    if inline:
        mapped = mmap.mmap(data, index.end, access=mmap.ACCESS_READ) if index.end else b""
        draft.publish(index.model(None, lambda offset, length: mapped[offset : offset + length]), None)
        return
    data_file = draft.place_data()
    try:
        draft.publish(index.model(data_file.name, lambda _offset, _length: b""), data_file)  # only asked for 0 bytes
    except BaseException:
        draft.undo_place_data(data_file)
        raise


def _alignment(nbytes: int) -> int:
    """Return the alignment in the data file of a tensor with this many bytes."""
    return form.PAGE if nbytes >= form.PAGE else form.ALIGNMENT
