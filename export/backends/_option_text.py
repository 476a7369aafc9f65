"""Reads values of options that may be text, as the command line has it."""

import ast
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from ..common._suggestions import hint

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


def several(value: Any) -> tuple[str, ...]:
    """Several of them, or text: `a,b`."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else tuple(value)


def table(value: Any) -> dict[str, Any]:
    """Read a dictionary, or text: `name=value,name=value`, whose values stay text.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, Mapping):
        return dict(value)
    pairs = [item.partition("=") for item in several(value)]
    if any(not (name and sign) for name, sign, _ in pairs):
        raise ValueError(f"{value!r} is not name=value,name=value")
    return {name.strip(): text.strip() for name, _, text in pairs}


def literal(text: str) -> Any:
    """What is written, as JSON or as Python; itself, if it is neither."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


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
