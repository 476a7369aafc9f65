"""Reads values of options that may be text, as the command line has it."""

import inspect
from collections.abc import Callable
from typing import Any

from .._hint import hint

_WORDS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


def flag(value: Any) -> bool:
    """Read `True`, `"true"`, `"on"` or `"1"`, and their opposites.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(value, bool):
        return value
    if str(value).lower() in _WORDS:
        return _WORDS[str(value).lower()]
    raise ValueError(f"{value!r} is neither true nor false")


def number(value: Any) -> int:
    """Read a whole number.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not str(value).strip().isdecimal():
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def unknown_option(factory: Callable[..., Any], options: dict[str, Any]) -> str:
    """Which option a factory does not take, and which it does; `""` if it takes them all, as far as can be told."""
    try:
        taken = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # of what is written in C
        return ""
    names = [item.name for item in taken if item.kind in (item.KEYWORD_ONLY, item.POSITIONAL_OR_KEYWORD)]
    if any(item.kind == item.VAR_KEYWORD for item in taken):
        return ""
    unknown = next((name for name in options if name not in names), None)
    if unknown is None:
        return ""
    told = [name for name in names if name not in ("name", "stages")]  # what each backend has, and is no choice
    return f"has no option {unknown!r}; {hint(unknown, told) if told else 'it takes none'}"
