"""Hears which graph transformers changed a graph: ONNX Runtime says so in its log, and nowhere else."""

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_STDERR = 2
_LINE = re.compile(rb"[^\n]*\[[VIWEF]:onnxruntime:[^\n]*(?:\n|$)")  # each begins with colours, and a time
_CHANGED = re.compile(rb"GraphTransformer (\S+) modified: 1 ")
_ONE_AT_A_TIME = threading.Lock()  # there is one standard error


@contextmanager
def changes_heard(heard: dict[str, None]) -> Iterator[None]:
    """Put the names of what changes the graph of a session that is made inside of the block into `heard`, in order.

    The log goes to the process's standard error, wherever Python's is; a file takes its place in the meantime. What
    others write there comes out when the block is left. The session's `log_severity_level` has to be 1.
    """
    with _ONE_AT_A_TIME, tempfile.TemporaryFile() as file:
        with suppress(AttributeError, OSError, ValueError):  # there may be none, or it is closed
            sys.stderr.flush()
        before = os.dup(_STDERR)
        try:
            os.dup2(file.fileno(), _STDERR)
            yield
        finally:
            os.dup2(before, _STDERR)
            os.close(before)
            file.seek(0)
            said = file.read()
            heard.update(dict.fromkeys(name.decode() for name in _CHANGED.findall(said)))
            _write(_LINE.sub(b"", said))


def _write(rest: bytes) -> None:
    while rest:
        rest = rest[os.write(_STDERR, rest) :]
