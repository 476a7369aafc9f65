"""What a comparison refuses."""

from filch.steal import FilchError


class CompareError(FilchError):
    """A reference and a program that do not fit together."""
