"""Standard output and error of a command, whatever characters they can show and whether or not somebody reads them."""

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from filch.steal.files._outputs import write_problem

_SIGPIPE = 141  # the exit code of a program that wrote to a pipe that nobody reads, 128 + 13
_PLAIN = str.maketrans(
    {"─": "-", "…": "~", "\N{MULTIPLICATION SIGN}": "x", "→": ">", "µ": "u", "⁻": "-"}
)  # as wide as what they stand for


def show_all_characters() -> None:
    """Write plain characters, or escapes, in place of those that the terminal or the encoding of a file lacks."""
    codecs.register_error("filch", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None without a terminal, and anything in a notebook
            stream.reconfigure(errors="filch")


class OutputError(Exception):
    """Standard output or error can't be written; no `OSError`, which click would take for one of its own."""


@contextmanager
def checked_output() -> Iterator[None]:
    """End the process as other programs do if nobody reads its output, and with one sentence if it can't be written."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and cast("TextIO", _Checked(stream)) for stream in streams)
    try:
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()  # at exit, Python would write a message of its own
    except OutputError as error:
        is_unread = isinstance(error.__cause__, BrokenPipeError)
        if not is_unread:
            _write_error(f"filch: can't write the output: {error}\n")
        _discard(streams[0])
        sys.exit(_SIGPIPE if is_unread else 2)
    finally:
        sys.stdout, sys.stderr = streams


class _Checked:
    """A stream of text that raises `OutputError` where it can't be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _output_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with _output_errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(_problem(error)) from error


def _problem(error: OSError) -> str:
    """Return why the output can't be written, with the disk if it is a file."""
    path = Path(os.path.realpath("/dev/stdout"))
    return write_problem(error, path) if path.is_file() else error.strerror or str(error)


def _write_error(text: str) -> None:
    with suppress(OutputError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _discard(stream: TextIO | None) -> None:
    """Discard what is still to be written to standard output."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return what is written in place of characters, and where to continue (see `codecs.register_error`)."""
    if not isinstance(error, UnicodeEncodeError):  # of reading, which this handler is not for
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace"), error.end
