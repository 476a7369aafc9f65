"""The exceptions of Filch, and the text of their messages."""

from .text._visible import for_terminal, short_line


class FilchError(Exception):
    """The base class of Filch's exceptions: invalid arguments, unusable files, a missing backend.

    The message is safe to print: control characters in names from a model or a file are escaped.
    """

    def __str__(self) -> str:
        return for_terminal(super().__str__())


class NonFiniteError(FilchError):
    """A NaN or an infinity found by `steal_forward(watch=…)`.

    Attributes:
        nonfinite: the `NonFinite`.
    """

    def __init__(self, nonfinite: object) -> None:
        super().__init__(str(nonfinite))
        self.nonfinite = nonfinite


class DumpError(FilchError):
    """A file that is not a dump, or a damaged dump; the message contains the path."""


class NotADumpError(DumpError):
    """An ONNX model that `steal_forward` did not write."""


# What reading JSON of an unexpected form can raise; RecursionError is a RuntimeError.
DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_MAX_LENGTH, _MAX_READ = 200, 1000  # characters


def one_line(what: object) -> str:
    """Return an error message about an untrusted file as one short printable line."""
    return short_line(" ".join(str(what)[:_MAX_READ].split()), _MAX_LENGTH)


def os_error_reason(error: Exception) -> str:
    """Return the reason of an error without the path that `str` of an OSError repeats."""
    return str(getattr(error, "strerror", None) or error)
