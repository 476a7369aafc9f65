"""The exceptions of Filch; all of them are one sentence that says what was wrong, with what, and what to do."""

from .text import for_terminal, named


class FilchError(Exception):
    """Anything that Filch refuses: bad arguments, unusable files, a backend that is not there.

    The message can be printed: names from a model or a file can't bring control characters into it.
    """

    def __str__(self) -> str:
        return for_terminal(super().__str__())


class NonFiniteError(FilchError):
    """A NaN or an infinity where `steal_forward(watch=…)` was asked to look for one.

    Attributes:
        found: the `NonFinite`.
    """

    def __init__(self, found: object) -> None:
        super().__init__(str(found))
        self.found = found


class DumpError(FilchError):
    """A file that is no dump, or a dump that is damaged; the message names the path."""


# What taking wrong JSON for the right one can raise; RecursionError is a RuntimeError.
DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_LONGEST, _READ = 200, 1000  # characters


def in_short(what: object) -> str:
    """What somebody else says of a file that is not trusted, in one line that can be printed."""
    return named(" ".join(str(what)[:_READ].split()), _LONGEST)
