"""Return freed memory to the system, which glibc's allocator keeps otherwise."""

import contextlib
import ctypes
import functools
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ._weights import weight_bytes

_LITTLE = 2**31  # bytes that a process may have without anybody missing them
_MMAP_THRESHOLD = -3  # glibc's number of the parameter: the bytes of blocks that are returned when they are freed
_MAX_THRESHOLD = 2**25  # what glibc sets it to by itself in a process that frees large blocks


def release_memory() -> None:
    """Return freed memory to the system, which glibc's allocator keeps for later use: gigabytes after large weights.

    Does nothing in a process that has less than 2 GiB: to look for garbage takes a quarter of a second once torch and
    transformers are imported.
    """
    if (resident := _resident()) is not None and resident < _LITTLE:
        return
    gc.collect()
    if (trim := _libc("malloc_trim")) is not None:
        trim(0)


@contextlib.contextmanager
def returning_memory(model: ir.Model, above: int) -> Iterator[None]:
    """Inside of the `with` block, return each block of 4 MiB or more to the system as soon as it is freed.

    By itself, glibc's allocator keeps freed blocks of up to 32 MiB. Where weights are converted one by one, what is
    left of all of them would be in memory with the result, and `release_memory` can return it only afterwards. The
    setting is the process's, is not nested, and costs about a tenth of the time; so it does nothing for a model whose
    weights have no more than `above` bytes.
    """
    mallopt = _libc("mallopt")
    if mallopt is None or weight_bytes(model) <= above:
        yield
        return
    mallopt(_MMAP_THRESHOLD, 2**22)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _MAX_THRESHOLD)


def _resident() -> int | None:
    """Return the bytes of memory that this process has; None if only Linux would tell."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


@functools.cache
def _libc(name: str) -> Callable[..., Any] | None:
    """Return a function of glibc; None if the process has another C library."""
    try:
        function: Callable[..., Any] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function
