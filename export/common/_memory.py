"""Return freed memory to the system."""

import contextlib
import ctypes
import functools
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LITTLE = 2**31  # bytes that a process may have without anybody missing them


def release_memory() -> None:
    """Return freed memory to the system, which glibc's allocator keeps for later use: gigabytes after large weights.

    Does nothing in a process that has less than 2 GiB: to look for garbage takes a quarter of a second once torch and
    transformers are imported.
    """
    if (resident := _resident()) is not None and resident < _LITTLE:
        return
    gc.collect()
    if (trim := _trim()) is not None:
        trim(0)


def _resident() -> int | None:
    """Return the bytes of memory that this process has; None if only Linux would tell."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


@functools.cache
def _trim() -> Callable[[int], Any] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return None
