"""The error that comparisons raise."""

from filch.steal import FilchError


class CompareError(FilchError):
    """A comparison is not possible: options, inputs or files are invalid or do not fit together."""
