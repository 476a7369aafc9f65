"""The exceptions of Filch; all of them are one sentence that says what was wrong, with what, and what to do."""


class FilchError(Exception):
    """Anything that Filch refuses: bad arguments, unusable files, a backend that is not there."""


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

_LONGEST = 200


def in_short(what: object) -> str:
    """What somebody else says of a file that is not trusted, in one line that can be printed."""
    text = str(what)[:1000]
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())[:_LONGEST]
