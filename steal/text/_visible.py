"""Text that shows every character that it has, and obeys none."""

import json
import unicodedata

_NAME = 300  # characters of a name in a sentence or a cell: module paths and kernels have 200 at most
_LINE = 20_000  # characters of a line on a terminal: twice those of the widest table


def visible(text: str) -> str:
    r"""One line in which every character that can't be seen is written as JSON escapes it.

    Escaped are control characters (NUL, ESC, newline, tab, C1), directional overrides and other format characters,
    line and paragraph separators, lone surrogates, and code points that are not assigned. What is left is legal in XML,
    and so in a JUnit file, and can be encoded as UTF-8. Other text stays as it is, and so does the result of this
    function.

    >>> visible("a\x1b[2J\u202eb\nc")
    'a\\u001b[2J\\u202eb\\nc'
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def shortened(text: str, longest: int = _NAME) -> str:
    """Text of at most about `longest` characters; what is left out of the middle is replaced by the whole length.

    >>> shortened("x" * 1_000_000, 8)
    'xxxx…(1,000,000 characters)…xxxx'
    """
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}…({len(text):,} characters)…{text[len(text) - half :]}"


def named(text: object, longest: int = _NAME) -> str:
    """A name as a sentence or a cell of a table shows it: `visible`, and `shortened`."""
    return visible(shortened(str(text), longest))


def for_terminal(text: str) -> str:
    """Lines of text for a terminal or a log: each is `visible`, and `shortened` to 20,000 characters.

    Newlines stay: a name that may hold some goes through `named` before it becomes part of a sentence.
    """
    if text.isprintable() and len(text) <= _LINE:
        return text
    return "\n".join(named(line, _LINE) for line in text.split("\n"))


def _escaped(sign: str) -> str:
    # Blanks of other widths (Zs) are not "printable", but seen; tables use the one that does not break.
    return sign if sign.isprintable() or unicodedata.category(sign) == "Zs" else json.dumps(sign)[1:-1]
