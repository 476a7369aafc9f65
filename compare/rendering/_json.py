"""Frozen dataclasses as JSON, and back by their type annotations; anything else is refused."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from filch.export import Graph, graph_from_json, graph_to_json

_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}  # JSON has none for them
_LARGEST = 2**1023  # a larger integer is no float


def plain(value: Any) -> Any:
    """Return a value as `json.dumps` takes it.

    A dataclass becomes a dictionary of its fields; inf and NaN, for which JSON has no number, and objects of any other
    type, such as a dtype among a backend's options, become strings.
    """
    if isinstance(value, Graph):
        return graph_to_json(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def typed(kind: Any, found: Any, place: str) -> Any:
    """Return what `plain` made from a value of a type.

    Args:
        kind: a frozen dataclass, of which further entries are ignored, or a type as its fields have it.
        found: what `json.loads` returned.
        place: where it stands, for the message.

    Raises:
        TypeError: it is of another type.
        KeyError: a field is missing.
    """
    if kind is Any:
        return found
    if kind is Graph:
        return graph_from_json(found)
    if is_dataclass(kind) and isinstance(kind, type):
        given = _checked(found, dict, place)
        return kind(**{name: typed(hint, given[name], f"{place}.{name}") for name, hint in _hints(kind).items()})
    origin, parts = get_origin(kind), get_args(kind)
    make = _MAKERS.get(origin)
    return _scalar(kind, found, place) if make is None else make(parts, found, place)


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _scalar(kind: Any, found: Any, place: str) -> Any:
    if kind is float:
        number = _NUMBERS.get(found, found) if isinstance(found, str) else found
        if type(number) is int and abs(number) < _LARGEST:
            return number
        return _checked(number, float, place)
    return _checked(found, kind, place)


def _tuple(parts: tuple[Any, ...], found: Any, place: str) -> tuple[Any, ...]:
    items = _checked(found, list, place)
    kinds = parts[:1] * len(items) if parts[1:] == (...,) else parts
    if len(kinds) != len(items):
        raise TypeError(f"{place} has {len(items)} items, not {len(kinds)}")
    return tuple(typed(kind, item, f"{place}[{at}]") for at, (kind, item) in enumerate(zip(kinds, items, strict=True)))


def _union(parts: tuple[Any, ...], found: Any, place: str) -> Any:
    """What may be missing; no type that is noted is a choice of several others."""
    if found is None and type(None) in parts:
        return None
    return typed(next(part for part in parts if part is not type(None)), found, place)


def _literal(parts: tuple[Any, ...], found: Any, place: str) -> Any:
    if found not in parts:
        raise TypeError(f"{place} is {_short(found)}, not one of {', '.join(map(repr, parts))}")
    return found


def _mapping(parts: tuple[Any, ...], found: Any, place: str) -> dict[str, Any]:
    items = _checked(found, dict, place).items()
    return {typed(parts[0], name, place): typed(parts[1], item, f"{place}.{name}") for name, item in items}


_MAKERS: dict[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    tuple: _tuple,
    Mapping: _mapping,
    UnionType: _union,
    Literal: _literal,
}


def _checked(found: Any, kind: type, place: str) -> Any:
    if type(found) is not kind:  # True is an int, too
        raise TypeError(f"{place} is {_short(found)}, not of type {kind.__name__}")
    return found


def _short(found: Any) -> str:
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:60]}…"
