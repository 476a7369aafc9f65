"""Cells of CSV files, which spreadsheets open."""

from typing import TypeVar

from ._visible import named

T = TypeVar("T")
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # their full-width forms, too
_LONGEST = 30_000  # characters; spreadsheets hold 32,767 in a cell


def for_csv(value: T) -> T | str:
    """A value as a cell: text that a spreadsheet would compute begins with an apostrophe; numbers stay numbers.

    Text is one line without control characters, of at most 30,000 characters. Quotes and commas are left to the
    module `csv`. See OWASP, "CSV Injection".

    >>> for_csv("=cmd|' /C calc'!A0"), for_csv(-1.5), for_csv("-1.5")
    ("'=cmd|' /C calc'!A0", -1.5, '-1.5')
    """
    if not isinstance(value, str):
        return value
    text = named(value, _LONGEST)
    # What `visible` makes of a tab or a carriage return begins with a backslash, which computes nothing.
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
