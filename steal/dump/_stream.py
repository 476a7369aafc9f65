"""Write a file in a background thread, through a bounded amount of memory."""

import ctypes
import errno
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from ..values._raw import bytes_of, copy, no_modes_or_grad

BLOCK = 2**22  # bytes per write: few long writes take less processor time from the model
_HUGE = 2**21  # a huge page: one page fault instead of 512, and one piece for the disk
_MEASURE_EVERY = 64  # blocks after which both ways of writing are measured again
_MAX_SLOWDOWN = 5  # how much slower direct writes may be: the page cache takes processor time from a model on the CPU
_ZEROS = bytes(4096)  # at least as many as an alignment
_PAUSE = 0.1  # seconds that a partly filled block may wait


class _FileBlock:
    """A block of the file.

    Attributes:
        start: its offset in the file.
        filled: the number of bytes in it, which never change again.
        written: the number of bytes that are in the file; used only by the writing thread.
        events: of copies from a GPU into the block that may still run.
        tensor, view, address: its memory as a tensor, as a memoryview, and where it begins.
    """

    __slots__ = ("address", "events", "filled", "start", "tensor", "view", "written")

    def __init__(self, size: int, *, pinned: bool, large: bool) -> None:
        if pinned:
            self.tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True, device="cpu")
            self.address = self.tensor.data_ptr()
            self.view = bytes_of(self.tensor)
        else:
            memory = mmap.mmap(-1, size)  # anonymous pages, allocated when first written
            if large and hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
                with suppress(OSError):  # not supported by the kernel
                    memory.madvise(mmap.MADV_HUGEPAGE)
            self.view = memoryview(memory)
            self.tensor = torch.frombuffer(memory, dtype=torch.uint8)
            self.address = self.tensor.data_ptr()
        self.events: deque[torch.cuda.Event] = deque()
        self.start = self.filled = self.written = 0


class _BlockWriter:
    """Writes whole blocks through the page cache or directly, whichever is better at the moment.

    A direct write takes hardly any processor time and no memory, which a model on the CPU can use. But on a slow disk,
    the page cache accepts the bytes sooner, and a model on a GPU waits for that alone. Both ways are measured now and
    then.

    Attributes:
        max_slowdown: how much slower direct writes may be.
    """

    def __init__(self, cached: int, direct: int | None) -> None:
        self.max_slowdown: float = _MAX_SLOWDOWN
        self._cached, self._direct = cached, direct
        self._durations: dict[bool, float] = {}  # of the last write, by whether it was direct
        self._count = 0

    def write(self, view: memoryview, start: int) -> int:
        """Write a whole block; return the number of bytes written."""
        direct = self._direct if self._is_direct_next() else None
        self._count += 1
        begin = time.perf_counter()
        try:
            written = os.pwrite(self._cached if direct is None else direct, view, start)
        except OSError as error:
            if direct is None or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._direct = None  # the file system doesn't support direct writes
            return self.write(view, start)
        self._durations[direct is not None] = time.perf_counter() - begin
        return written

    def _is_direct_next(self) -> bool:
        """Return whether to write the next block directly.

        At first and again after each `_MEASURE_EVERY` blocks, one block is written each way, the direct way first. The
        blocks between are written the way that the last measurements of both favor.
        """
        if self._direct is None:
            return False
        if len(self._durations) < 2 or not self._count % _MEASURE_EVERY:
            return self._count % 2 == 0 or self._durations.keys() == {False}
        if self._count % _MEASURE_EVERY == 1:
            return False
        return self._durations[True] <= self.max_slowdown * self._durations[False]


class Stream:
    """Buffers bytes in the order of the file and writes them in a thread, followed by the journal rows that need them.

    `put` must be called by one thread at a time. It waits while `buffer` bytes are not written yet.

    Attributes:
        end: the length of the file once everything is written.
        written: the number of bytes written to the operating system.
        records: the number of records written to the operating system, with all their bytes.
        waited: seconds for which `put` waited for the disk.
        error: the first error from writing; all later bytes are discarded.
    """

    def __init__(
        self,
        data: int,
        direct: int | None,
        journal: int,
        render: Callable[[list[tuple[Any, ...]]], tuple[str, int]],
        buffer: int,
    ) -> None:
        """Start the thread.

        Args:
            data: descriptor of the data file.
            direct: descriptor of the same file that bypasses the page cache; None if not supported.
            journal: descriptor of the journal.
            render: returns the journal lines of rows, and the number of records including these.
            buffer: the maximum number of bytes in memory.
        """
        self.end = 0
        self.written = 0
        self.records = 0
        self.waited = 0.0
        self.error: OSError | None = None
        self._data, self._journal, self._render = data, journal, render
        self._block_writer = _BlockWriter(data, direct)
        self._block_size = max(4096, min(BLOCK, buffer // 2) // 4096 * 4096)
        self._max_blocks = max(2, buffer // self._block_size)
        self._allocated = 0
        self._free: list[_FileBlock] = []
        self._full: deque[_FileBlock] = deque()
        self._current: _FileBlock | None = None
        self._pending_rows: deque[tuple[Any, ...]] = deque()
        self._changed = threading.Condition()
        self._passes_begun = self._passes_finished = 0  # one pass of the thread writes all that is pending
        self._flush_requested = self._closing = False
        self._side_streams: dict[torch.device, torch.cuda.Stream] = {}
        self._thread = threading.Thread(target=self._run, name="filch-writer", daemon=True)
        self._thread.start()

    def put(self, address: int, nbytes: int, alignment: int) -> int:
        """Copy `nbytes` from `address` now; return their offset in the file, a multiple of `alignment`."""
        block, gap = self._current, -self.end % alignment
        # The fast path, for most small tensors; a block that becomes full is left to `_extend`.
        if block is not None and block.filled + gap + nbytes < self._block_size:
            target = block.address + block.filled
            if gap:
                ctypes.memset(target, 0, gap)
            copy(target + gap, address, nbytes)
            block.filled += gap + nbytes
            self.end += gap + nbytes
            return self.end - nbytes
        offset = self._align(alignment)
        for block, size in self._extend(nbytes):
            copy(block.address + block.filled, address, size)
            address += size
        return offset

    def put_bytes(self, data: bytes, alignment: int) -> int:
        """Like `put`, for bytes."""
        block, gap = self._current, -self.end % alignment
        if block is not None and block.filled + gap + len(data) < self._block_size:
            start = block.filled
            end = start + gap + len(data)
            block.view[start:end] = _ZEROS[:gap] + data if gap else data
            block.filled = end
            self.end += end - start
            return self.end - len(data)
        offset = start = self._align(alignment)
        for block, size in self._extend(len(data)):
            done = self.end - start
            block.view[block.filled : block.filled + size] = data[done : done + size]
        return offset

    def put_cuda(self, flat: torch.Tensor, alignment: int, *, is_unshared: bool) -> int:
        """Like `put`, for a 1-d uint8 tensor on a GPU; returns before the bytes are copied.

        Later changes by the model must not reach the copy, and the model must not wait for it. So each piece is first
        copied on the GPU in the model's stream, which is fast, and from there to pinned memory in another stream. The
        pieces on the GPU never exceed the buffer.

        Args:
            flat: the bytes.
            alignment: see `put`.
            is_unshared: nothing else uses this tensor, so it needs no copy on the GPU.
        """
        self._block_writer.max_slowdown = 1  # part of the model is on a GPU, which would wait
        offset, start = self._align(alignment), 0
        device = flat.device
        side_stream = self._side_streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        for block, size in self._extend(flat.numel()):
            with no_modes_or_grad():
                piece = flat[start : start + size]
                piece = piece if is_unshared else piece.clone()
                side_stream.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(side_stream):
                    block.tensor[block.filled : block.filled + size].copy_(piece, non_blocking=True)
                    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    event.record(side_stream)
                piece.record_stream(side_stream)
            block.events.append(event)
            start += size
        return offset

    def put_row(self, row: tuple[Any, ...]) -> None:
        """Write a row to the journal once all bytes put so far are in the file."""
        self._pending_rows.append(row)

    def flush(self) -> int:
        """Wait until everything put so far is written to the operating system; return `records`."""
        with self._changed:
            goal = self._passes_begun + 1  # a pass that runs already may have missed the last bytes
            self._flush_requested = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._passes_finished >= goal or not self._thread.is_alive())
        return self.records

    def close(self) -> None:
        """Write everything left, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._free.clear()  # the capture may live on, without this memory
        self._current = None

    def _align(self, alignment: int) -> int:
        """Add zeros up to a multiple of `alignment`, and return the offset."""
        for block, size in self._extend(-self.end % alignment):
            ctypes.memset(block.address + block.filled, 0, size)
        return self.end

    def _extend(self, nbytes: int) -> Iterator[tuple[_FileBlock, int]]:
        """Add `nbytes` to the file: yield each block with the number of bytes that the caller must append to it now."""
        while nbytes:
            if self._current is None:
                block = self._free_block()
                block.filled = block.written = 0
                block.start = self.end
                self._current = block
            block = self._current
            size = min(self._block_size - block.filled, nbytes)
            yield block, size
            nbytes -= size
            block.filled += size
            self.end += size
            if block.filled == self._block_size:
                with self._changed:
                    self._full.append(block)
                    self._current = None
                    self._changed.notify_all()

    def _free_block(self) -> _FileBlock:
        """Return a block that isn't in use; wait for one if all are."""
        if not self._free:
            if self._allocated < self._max_blocks:
                self._allocated += 1
                large = self._allocated > 1 and not self._block_size % _HUGE  # one block may be all that is needed
                return _FileBlock(self._block_size, pinned=torch.cuda.is_initialized(), large=large)  # type: ignore[no-untyped-call]
            begin = time.perf_counter()
            with self._changed:
                self._changed.wait_for(lambda: self._free or self._allocated < self._max_blocks)
            self.waited += time.perf_counter() - begin
            return self._free_block()
        return self._free.pop()  # the block written last is still in the processor's cache

    def _run(self) -> None:
        """Write in the background thread until the stream is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._full or self._flush_requested or self._closing, timeout=_PAUSE)
                closing = self._closing
                self._flush_requested = False
                self._passes_begun += 1
            self._write_pending()
            with self._changed:
                self._passes_finished += 1
                self._changed.notify_all()
            if closing:
                return

    def _write_pending(self) -> None:
        """Write all pending blocks and rows; an exception ends writing, not the thread."""
        try:
            self._write_blocks_and_rows()
        except Exception as error:  # noqa: BLE001  from CUDA or out of memory: the model must run on
            self.error = self.error or OSError(None, f"{type(error).__name__}: {error}")
            with self._changed:  # `put` needs a block even if its bytes are discarded
                self._allocated = 0
                self._changed.notify_all()

    def _write_blocks_and_rows(self) -> None:
        """Write the data of all pending blocks, then the journal rows that need them."""
        rows = len(self._pending_rows)  # read first: the bytes of these rows were put before the rows
        with self._changed:
            current, end = self._current, self._current.filled if self._current else 0
            full = list(self._full)
            self._full.clear()
        for block in full:
            self._write_block(block, block.filled)
            with self._changed:
                self._free.append(block)
                self._changed.notify_all()
        if current is not None:
            self._write_block(current, end)
        if not rows:
            return
        text, records = self._render([self._pending_rows.popleft() for _ in range(rows)])
        if self.error is None:
            self._write_journal(text.encode())
        if self.error is None:
            self.records = records

    def _write_block(self, block: _FileBlock, end: int) -> None:
        """Write the bytes of a block up to `end`, once all copies from GPUs into it are complete."""
        while block.events and self.error is None:
            block.events.popleft().synchronize()
        if self.error is None:
            try:
                if block.written == 0 and end == self._block_size:  # direct writes need whole, aligned blocks
                    block.written = self._block_writer.write(block.view, block.start)
                while block.written < end:
                    block.written += os.pwrite(self._data, block.view[block.written : end], block.start + block.written)
            except OSError as error:
                self.error = error
            self.written = block.start + block.written

    def _write_journal(self, lines: bytes) -> None:
        """Write journal lines; the operating system may write only a part of them at a time."""
        try:
            while lines:
                lines = lines[os.write(self._journal, lines) :]
        except OSError as error:
            self.error = error
