"""The exceptions of `filch.export`."""

import errno
import os
import tempfile

from filch.steal import FilchError
from filch.steal.files._outputs import free_space

_NO_ROOM = os.strerror(errno.ENOSPC)


class ExportError(FilchError):
    """A model can't be exported; the message starts with torch's reason."""


class ProgramError(FilchError):
    """A file is not an ONNX model, or not a usable one; the message names the path."""


class BackendError(FilchError):
    """A backend does not exist, lacks a device, or can't run a program."""


class EmptyProgramError(BackendError):
    """A program computes nothing, as if it only returns its inputs, so that a compiler makes no code of it."""


class PassError(FilchError):
    """A pass or an instrument fails or does not exist; the message names it."""


class ViewError(FilchError):
    """A graph can't be drawn, or a view does not exist."""


class TraceError(FilchError):
    """A model can't be traced, or a file does not contain a trace."""


def reason(error: BaseException) -> str:
    """Return the type and the first line of the root cause of an error; if a disk is full, which one.

    Compilers and other programs write temporary files and say that it is full in what they print.
    """
    root = error
    while (cause := _cause(root)) is not None:
        root = cause
    if any(
        _NO_ROOM in text for text in (str(root), str(getattr(root, "output", "")), str(getattr(root, "stderr", "")))
    ):
        return f"{_NO_ROOM}: {free_space(getattr(root, 'filename', None) or tempfile.gettempdir())}"
    lines = [line.strip() for line in str(root).splitlines()]
    text = next((line for line in lines if line), "")
    return f"{type(root).__name__}: {text}" if text else type(root).__name__


def _cause(error: BaseException) -> BaseException | None:
    """Return the exception that led to an error; None if there is none, or it was hidden by `raise … from None`."""
    # Dynamo's error for a failing backend only names the backend; its attribute is the backend's own exception.
    inner: BaseException | None = getattr(error, "inner_exception", None)
    return inner or error.__cause__ or (None if error.__suppress_context__ else error.__context__)
