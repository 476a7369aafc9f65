"""Escape text for cells of CSV files that a spreadsheet may open."""

from typing import TypeVar

from ._visible import short_line

T = TypeVar("T")
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # and their full-width forms
_MAX_LENGTH = 30_000  # characters; spreadsheets hold 32,767 in a cell


def for_csv(value: T) -> T | str:
    """Return a value as a cell: text that a spreadsheet would evaluate gets an apostrophe, numbers stay numbers.

    Text becomes one line without control characters and of at most 30,000 characters. Quotes and commas are left to
    the `csv` module. See OWASP, "CSV Injection".

    >>> for_csv("=cmd|' /C calc'!A0"), for_csv(-1.5), for_csv("-1.5")
    ("'=cmd|' /C calc'!A0", -1.5, '-1.5')
    """
    if not isinstance(value, str):
        return value
    text = short_line(value, _MAX_LENGTH)
    # `short_line` has replaced tabs and carriage returns, which could also start a formula.
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
