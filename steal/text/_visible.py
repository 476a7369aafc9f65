"""Make control characters and other invisible characters in text visible, and shorten long text."""

import json
import unicodedata

_NAME = 300  # characters of a name in a sentence or a table cell; module paths and kernel names have up to 200
_LINE = 20_000  # characters of a line on a terminal: twice the widest table


def visible(text: str) -> str:
    r"""Return text as one line, with invisible characters escaped as in JSON.

    Escaped are control characters (NUL, ESC, newline, tab, C1), directional overrides and other format characters,
    line and paragraph separators, lone surrogates, and unassigned code points. The result is legal in XML, and so in a
    JUnit file, can be encoded as UTF-8, and is not changed by applying the function again.

    >>> visible("a\x1b[2J\u202eb\nc")
    'a\\u001b[2J\\u202eb\\nc'
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def shortened(text: str, longest: int = _NAME) -> str:
    """Shorten text to about `longest` characters by replacing its middle with its original length.

    >>> shortened("x" * 1_000_000, 8)
    'xxxx…(1,000,000 characters)…xxxx'
    """
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}…({len(text):,} characters)…{text[len(text) - half :]}"


def short_line(text: object, longest: int = _NAME) -> str:
    """Return text as one short printable line (see `visible` and `shortened`), for a sentence or a table cell."""
    return visible(shortened(str(text), longest))


def for_terminal(text: str) -> str:
    """Return text for a terminal or a log: each line is `visible`, and `shortened` to 20,000 characters.

    Newlines are kept; apply `short_line` to an untrusted name before inserting it into a sentence.
    """
    if text.isprintable() and len(text) <= _LINE:
        return text
    return "\n".join(short_line(line, _LINE) for line in text.split("\n"))


def _escaped(char: str) -> str:
    # Spaces of other widths (category Zs) are not "printable" but harmless; tables use the no-break space.
    return char if char.isprintable() or unicodedata.category(char) == "Zs" else json.dumps(char)[1:-1]
