"""A file that is written by a thread of its own, through a bounded amount of memory."""

import ctypes
import errno
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ..values._raw import bytes_of, copy, no_modes_or_grad

BLOCK = 2**22  # each write takes time of the processors that the model runs on: a few long ones take less
_HUGE = 2**21  # a large page: one fault instead of 512, and one piece for the disk
_TRIAL = 64  # blocks after which both ways of writing are tried again
_WORTH = 5  # times as long as through the page cache, which takes the model's processor and fresh pages of memory
_PAUSE = 0.1  # seconds for which a block that isn't full may wait


class _Block:
    """A piece of the file that is being filled.

    Attributes:
        start: where in the file it begins.
        filled: how many bytes are in it; those before are never changed again.
        written: how many of them are in the file; the writing thread's own.
        events: of the copies from a GPU into it that may not have ended.
    """

    __slots__ = ("address", "events", "filled", "start", "tensor", "view", "written")

    def __init__(self, size: int, *, pinned: bool, large: bool) -> None:
        if pinned:
            self.tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True, device="cpu")
            self.address = self.tensor.data_ptr()
            self.view = bytes_of(self.tensor)
        else:
            memory = mmap.mmap(-1, size)  # pages of its own: none is touched before it is needed
            if large and hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
                with suppress(OSError):  # a kernel without them
                    memory.madvise(mmap.MADV_HUGEPAGE)
            self.view = memoryview(memory)
            self.tensor = torch.frombuffer(memory, dtype=torch.uint8)
            self.address = self.tensor.data_ptr()
        self.events: deque[torch.cuda.Event] = deque()
        self.start = self.filled = self.written = 0


class _Ways:
    """Writes whole blocks through the page cache or past it, whichever suits the machine at the moment.

    Past it, a write costs hardly any time of a processor, which the model can use, and no memory; but where the disk is
    slow, the page cache takes the bytes sooner. Both are tried now and then.
    """

    def __init__(self, cached: int, direct: int | None) -> None:
        self._files: dict[bool, int | None] = {True: direct, False: cached}
        self._took: dict[bool, float] = {}
        self._count = 0

    def write(self, view: memoryview, start: int) -> int:
        """Write a whole block; returns how much of it was written."""
        direct = self._is_direct_next()
        self._count += 1
        file = self._files[direct]
        if file is None:
            return os.pwrite(self._files[False] or 0, view, start)
        begin = time.perf_counter()
        try:
            done = os.pwrite(file, view, start)
        except OSError as error:
            if not direct or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._files[True] = None  # this file system has no such way
            return self.write(view, start)
        self._took[direct] = time.perf_counter() - begin
        return done

    def _is_direct_next(self) -> bool:
        if self._files[True] is None:
            return False
        if len(self._took) < 2 or not self._count % _TRIAL:
            return self._count % 2 == 0 or self._took.keys() == {False}
        if self._count % _TRIAL == 1:
            return False
        return self._took[True] <= _WORTH * self._took[False]


class Stream:
    """Takes bytes in, in the order of the file, and writes them out beside the model; then the rows that need them.

    One thread (at a time) puts. When `buffer` bytes wait for the disk, `put` waits too.

    Attributes:
        end: the length of the file when all is written.
        durable: the bytes that are with the operating system.
        records: how many records are with the operating system, and all bytes that came before them.
        waited: seconds for which `put` had to wait for the disk.
        error: what the disk refused with; from then on everything is thrown away.
    """

    def __init__(
        self,
        data: int,
        direct: int | None,
        journal: int,
        render: Callable[[list[tuple[Any, ...]]], tuple[str, int]],
        buffer: int,
    ) -> None:
        """Start.

        Args:
            data: the file of the bytes, open.
            direct: the same file, open to write past the page cache; None if that can't be.
            journal: the file of the rows, open.
            render: makes text of rows, and says how many records there are with these.
            buffer: the most bytes that may wait.
        """
        self.end = 0
        self.durable = 0
        self.records = 0
        self.waited = 0.0
        self.error: OSError | None = None
        self._data, self._journal, self._render = data, journal, render
        self._ways = _Ways(data, direct)
        self._size = max(4096, min(BLOCK, buffer // 2) // 4096 * 4096)
        self._blocks = max(2, buffer // self._size)
        self._made = 0
        self._free: list[_Block] = []
        self._full: deque[_Block] = deque()
        self._current: _Block | None = None
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._changed = threading.Condition()
        self._begun = self._finished = 0
        self._hurry = self._closing = False
        self._side: dict[torch.device, torch.cuda.Stream] = {}
        self._thread = threading.Thread(target=self._run, name="filch-writer", daemon=True)
        self._thread.start()

    def put(self, address: int, nbytes: int, alignment: int) -> int:
        """Copy `nbytes` from `address` now; returns the offset in the file, a multiple of `alignment`."""
        block, gap = self._current, -self.end % alignment
        if block is not None and block.filled + gap + nbytes < self._size:  # as a rule; for small ones it counts
            place = block.address + block.filled
            if gap:
                ctypes.memset(place, 0, gap)
            copy(place + gap, address, nbytes)
            block.filled += gap + nbytes
            self.end += gap + nbytes
            return self.end - nbytes
        offset = self._align(alignment)
        while nbytes:
            block, room = self._room()
            size = min(room, nbytes)
            copy(block.address + block.filled, address, size)
            address += size
            nbytes -= size
            self._fill(block, size)
        return offset

    def put_cuda(self, flat: torch.Tensor, alignment: int, *, ours: bool) -> int:
        """Like `put`, for a 1-d uint8 tensor on a GPU; returns before the bytes are here.

        What the model does to the tensor next must not reach the copy, and the model must not wait for it. So each
        piece is first copied on the GPU, in the model's own stream, which takes no time worth mentioning, and from
        there to pinned memory in another stream. The pieces on the GPU never exceed the buffer.

        Args:
            flat: the bytes.
            alignment: see `put`.
            ours: nobody else has this tensor, so that it needs no copy on the GPU.
        """
        offset, start = self._align(alignment), 0
        device = flat.device
        side = self._side.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        while start < flat.numel():
            block, room = self._room()
            size = min(room, flat.numel() - start)
            with no_modes_or_grad():
                piece = flat[start : start + size]
                piece = piece if ours else piece.clone()
                side.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(side):
                    block.tensor[block.filled : block.filled + size].copy_(piece, non_blocking=True)
                    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    event.record(side)
                piece.record_stream(side)
            block.events.append(event)
            start += size
            self._fill(block, size)
        return offset

    def then(self, row: tuple[Any, ...]) -> None:
        """Write a row to the journal, once all that was put so far is in the file."""
        self._waiting.append(row)

    def flush(self) -> int:
        """Wait until all that was put so far is with the operating system; returns `records`."""
        with self._changed:
            goal = self._begun + 1
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._finished >= goal or not self._thread.is_alive())
        return self.records

    def close(self) -> None:
        """Write all that is left, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._free.clear()  # the memory, whoever keeps the capture
        self._current = None

    def _align(self, alignment: int) -> int:
        gap = -self.end % alignment
        while gap:
            block, room = self._room()
            size = min(room, gap)
            ctypes.memset(block.address + block.filled, 0, size)
            gap -= size
            self._fill(block, size)
        return self.end

    def _fill(self, block: _Block, size: int) -> None:
        block.filled += size
        self.end += size
        if block.filled == self._size:
            with self._changed:
                self._full.append(block)
                self._current = None
                self._changed.notify_all()

    def _room(self) -> tuple[_Block, int]:
        if self._current is None:
            block = self._fresh()
            block.filled = block.written = 0
            block.start = self.end
            self._current = block
        return self._current, self._size - self._current.filled

    def _fresh(self) -> _Block:
        if not self._free:
            if self._made < self._blocks:
                self._made += 1
                large = self._made > 1 and not self._size % _HUGE  # the first may be all that is needed
                return _Block(self._size, pinned=torch.cuda.is_initialized(), large=large)  # type: ignore[no-untyped-call]
            begin = time.perf_counter()
            with self._changed:
                self._changed.wait_for(lambda: self._free or self._made < self._blocks)
            self.waited += time.perf_counter() - begin
            return self._fresh()
        return self._free.pop()  # the one that was written last: it is in the cache still

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._full or self._hurry or self._closing, timeout=_PAUSE)
                closing = self._closing
                self._hurry = False
                self._begun += 1
            self._pass()
            with self._changed:
                self._finished += 1
                self._changed.notify_all()
            if closing:
                return

    def _pass(self) -> None:
        try:
            self._write_what_waits()
        except Exception as error:  # noqa: BLE001  of CUDA's, or memory's: the model runs on without us
            self.error = self.error or OSError(None, f"{type(error).__name__}: {error}")
            with self._changed:  # `put` must find room to throw away into
                self._made = 0
                self._changed.notify_all()

    def _write_what_waits(self) -> None:
        rows = len(self._waiting)  # first: what these need was put before they were
        with self._changed:
            current, end = self._current, self._current.filled if self._current else 0
            full = list(self._full)
            self._full.clear()
        for block in full:
            self._write(block, block.filled)
            with self._changed:
                self._free.append(block)
                self._changed.notify_all()
        if current is not None:
            self._write(current, end)
        if not rows:
            return
        text, records = self._render([self._waiting.popleft() for _ in range(rows)])
        if self.error is None:
            self._note(text.encode())
        if self.error is None:
            self.records = records

    def _write(self, block: _Block, end: int) -> None:
        while block.events and self.error is None:
            block.events.popleft().synchronize()
        if self.error is None:
            try:
                if block.written == 0 and end == self._size:
                    block.written = self._ways.write(block.view, block.start)
                while block.written < end:
                    block.written += os.pwrite(self._data, block.view[block.written : end], block.start + block.written)
            except OSError as error:
                self.error = error
            self.durable = block.start + block.written

    def _note(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._journal, line) :]
        except OSError as error:
            self.error = error
