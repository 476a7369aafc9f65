"""Return freed memory to the system."""

import ctypes
import functools
import gc
from collections.abc import Callable
from typing import Any


def release_memory() -> None:
    """Return freed memory to the system, which glibc's allocator keeps for later use: gigabytes after large weights."""
    gc.collect()
    if (trim := _trim()) is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], Any] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return None
