"""Parse values of options, which are strings on the command line."""

import ast
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from ..common._suggestions import hint

_WORDS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


def boolean(value: Any) -> bool:
    """Parse a boolean: `True`, `"true"`, `"on"` or `"1"`, and their opposites.

    Raises:
        ValueError: the value is none of these.
    """
    word = str(value).lower()
    if word not in _WORDS:
        raise ValueError(f"{value!r} is neither true nor false")
    return _WORDS[word]


def integer(value: Any) -> int:
    """Parse a non-negative integer.

    Raises:
        ValueError: the value is not one.
    """
    if isinstance(value, bool) or not str(value).strip().isdecimal():
        raise ValueError(f"{value!r} is not a non-negative integer")
    return int(value)


def strings(value: Any) -> tuple[str, ...]:
    """Parse a sequence of strings, which may be given as `a,b`."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else tuple(value)


def mapping(value: Any) -> dict[str, Any]:
    """Parse a mapping, which may be given as `name=value,name=value`; its values are strings then.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, Mapping):
        return dict(value)
    pairs = [item.partition("=") for item in strings(value)]
    if any(not (name and sign) for name, sign, _ in pairs):
        raise ValueError(f"{value!r} is not name=value,name=value")
    return {name.strip(): text.strip() for name, _, text in pairs}


def literal(text: str) -> Any:
    """Parse a JSON or Python literal; return any other text unchanged."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deep
            continue
    return text


def unknown_option(factory: Callable[..., Any], options: dict[str, Any]) -> str:
    """Return an error message for an option that a factory lacks; `""` if it has all, or its signature is unknown."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return ""
    names = [item.name for item in parameters if item.kind in (item.KEYWORD_ONLY, item.POSITIONAL_OR_KEYWORD)]
    if any(item.kind == item.VAR_KEYWORD for item in parameters):
        return ""
    unknown = next((name for name in options if name not in names), None)
    if unknown is None:
        return ""
    choices = [name for name in names if name not in ("name", "stages")]  # attributes of every backend, not options
    return f"has no option {unknown!r}; {hint(unknown, choices) if choices else 'it takes none'}"
