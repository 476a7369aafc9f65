"""Standard output and error of a command, whatever characters they can show and whether or not somebody reads them."""

import codecs
import io
import os
import sys

_PLAIN = str.maketrans(
    {"─": "-", "…": "~", "\N{MULTIPLICATION SIGN}": "x", "→": ">", "µ": "u", "⁻": "-"}
)  # as wide as what they stand for


def show_all_characters() -> None:
    """Write plain characters, or escapes, in place of those that the terminal or the encoding of a file lacks."""
    codecs.register_error("filch", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None without a terminal, and anything in a notebook
            stream.reconfigure(errors="filch")


def discard_output() -> None:
    """Discard what is still to be written to standard output, whose reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace"), error.end
