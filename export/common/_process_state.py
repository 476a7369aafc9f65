"""Restore the process-wide state that torch changes while it exports or compiles."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

from filch.steal.private import _torch

_TRACE = logging.getLogger(_torch.TRACE_LOG)  # its handler removes itself during torch's first export
_CACHE = "TORCHINDUCTOR_CACHE_DIR"  # torch sets it to the folder that it chose


@contextlib.contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore the recursion limit, the handlers of torch's trace log and Inductor's cache folder at the end.

    Transforms of torch.func that were entered and not left, as where tracing fails inside of `vmap`, are left, and
    hooks of saved tensors, which these disable, are as before.

    Two of torch's changes stay, because code that runs later needs them: `setuptools/_vendor` in `sys.path`, from which
    setuptools imports, and the environment variable `_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR`, which compiled kernels
    read when they are loaded.
    """
    limit, handlers, folder = sys.getrecursionlimit(), [*_TRACE.handlers], os.environ.get(_CACHE)
    depth = _torch.get_dynamic_layer_stack_depth()
    disabled = _torch.saved_tensors_hooks_get_disabled_error_message()  # as torch.func does
    try:
        yield
    finally:
        _torch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        if disabled is None:
            _torch.saved_tensors_hooks_enable()
        sys.setrecursionlimit(limit)
        for handler in handlers:
            _TRACE.addHandler(handler)
        if folder is None:
            os.environ.pop(_CACHE, None)
