"""The error that comparisons raise, and the reasons of others."""

from filch.steal import FilchError


class CompareError(FilchError):
    """A comparison is not possible: options, inputs or files are invalid or do not fit together."""


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its type if that is empty."""
    return str(error).partition("\n")[0] or type(error).__name__
