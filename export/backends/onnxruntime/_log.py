"""Record which graph transformers changed a graph, which ONNX Runtime reports only in its log."""

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_STDERR = 2
_LINE = re.compile(rb"[^\n]*\[[VIWEF]:onnxruntime:[^\n]*(?:\n|$)")  # each begins with color codes and a time
_CHANGED = re.compile(rb"GraphTransformer (\S+) modified: 1 ")
_STDERR_LOCK = threading.Lock()  # standard error is shared by the process


@contextmanager
def record_transformers(names: dict[str, None]) -> Iterator[None]:
    """Add to `names`, an ordered set, the transformers that change the graph of a session created inside of the block.

    ONNX Runtime logs to the standard error of the process, which is redirected to a file inside of the block. Other
    output is written when the block ends. The session's `log_severity_level` has to be 1.
    """
    with _STDERR_LOCK, tempfile.TemporaryFile() as file:
        with suppress(AttributeError, OSError, ValueError):  # `sys.stderr` may be None or closed
            sys.stderr.flush()
        original = os.dup(_STDERR)
        try:
            os.dup2(file.fileno(), _STDERR)
            yield
        finally:
            os.dup2(original, _STDERR)
            os.close(original)
            file.seek(0)
            output = file.read()
            names.update(dict.fromkeys(name.decode() for name in _CHANGED.findall(output)))
            with open(_STDERR, "wb", closefd=False) as stderr:
                stderr.write(_LINE.sub(b"", output))
