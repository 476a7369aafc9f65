"""Puts back what torch changes for the whole process while it exports or compiles."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

_TRACE = logging.getLogger("torch.__trace")  # its handler takes itself off the first time that torch exports something
_CACHE = "TORCHINDUCTOR_CACHE_DIR"  # torch sets it to the folder that it chose


@contextlib.contextmanager
def kept_process_state() -> Iterator[None]:
    """Put back the recursion limit, the handlers of torch's trace log and Inductor's cache folder at the end.

    Two things are left as torch makes them, because code that runs later needs them: `setuptools/_vendor` in
    `sys.path`, from which setuptools imports, and the environment variable `_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR`,
    which compiled kernels read when they are loaded.
    """
    limit, handlers, folder = sys.getrecursionlimit(), [*_TRACE.handlers], os.environ.get(_CACHE)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        for handler in handlers:
            _TRACE.addHandler(handler)
        if folder is None:
            os.environ.pop(_CACHE, None)
