"""What goes wrong between a model and its graph."""

from filch.steal import FilchError


class ExportError(FilchError):
    """A model that can't be exported; the message gives torch's reason first."""


class ProgramError(FilchError):
    """A file that is no ONNX model, or one that can't be used; the message names the path."""


class BackendError(FilchError):
    """A backend that is not there, lacks a device, or can't run a program."""


class PassError(FilchError):
    """A pass that fails, or that is not there, or something that can't look on; the message names it."""


class ViewError(FilchError):
    """A graph that can't be drawn, or a view that is not there."""


class TraceError(FilchError):
    """A model that can't be traced, or a file that holds no trace."""


def reason(error: BaseException) -> str:
    """The first line of the error at the root of a chain, without the banners that torch puts around it."""
    root = error
    while (deeper := _behind(root)) is not None:
        root = deeper
    lines = [line.strip() for line in str(root).splitlines()]
    text = next((line for line in lines if line), "")
    return f"{type(root).__name__}: {text}" if text else type(root).__name__


def _behind(error: BaseException) -> BaseException | None:
    # What Dynamo raises for a backend says in its first line only which one, and has as an attribute what that raised.
    inner: BaseException | None = getattr(error, "inner_exception", None)
    return inner or error.__cause__ or (None if error.__suppress_context__ else error.__context__)
