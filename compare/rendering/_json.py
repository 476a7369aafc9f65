"""Convert frozen dataclasses to JSON and back, by their type annotations; refuse other types."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from filch.export import Graph, graph_from_json, graph_to_json

_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}  # not numbers in JSON
_LARGEST = 2**1023  # larger integers can't be converted to float
NOT_IN_JSON = {"json": False}  # the metadata of a field that is neither written nor read


def plain(value: Any) -> Any:
    """Return a value as types that `json.dumps` accepts.

    A dataclass becomes a dictionary of its fields without those that are `NOT_IN_JSON`; inf and NaN, which are not JSON
    numbers, and objects of any other type, such as a dtype among a backend's options, become strings.
    """
    if isinstance(value, Graph):
        return graph_to_json(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in _written(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def typed(kind: Any, data: Any, place: str) -> Any:
    """Return the value of type `kind` from which `plain` made `data`.

    Args:
        kind: a frozen dataclass, or the type of one of its fields; further entries of a dictionary are ignored.
        data: the result of `json.loads`.
        place: the path of `data`, for the message; `""` of the whole file.

    Raises:
        TypeError: `data` has another type.
        KeyError: a field is missing.
    """
    if kind is Any:
        return data
    if kind is Graph:
        return graph_from_json(data)
    if is_dataclass(kind) and isinstance(kind, type):
        entries = _check_type(data, dict, place)
        inside = f"{place}." if place else ""
        return kind(**{name: typed(hint, entries[name], inside + name) for name, hint in _types(kind).items()})
    origin, parts = get_origin(kind), get_args(kind)
    make = _MAKERS.get(origin)
    return _scalar(kind, data, place) if make is None else make(parts, data, place)


@cache
def _types(kind: type) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass that JSON has, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in _written(kind)}


def _written(kind: Any) -> Iterator[Field[Any]]:
    """Return the fields of a dataclass that JSON has."""
    return (field for field in fields(kind) if field.metadata.get("json", True))


def _scalar(kind: Any, data: Any, place: str) -> Any:
    """Return a value of a type without parts; a float may be written as an integer, `inf` or `nan`."""
    if kind is float:
        number = _NUMBERS.get(data, data) if isinstance(data, str) else data
        if type(number) is int and abs(number) < _LARGEST:
            return number
        return _check_type(number, float, place)
    return _check_type(data, kind, place)


def _tuple(parts: tuple[Any, ...], data: Any, place: str) -> tuple[Any, ...]:
    """Return a tuple of items of the given types, or of any number of items of one (`tuple[int, ...]`)."""
    items = _check_type(data, list, place)
    kinds = parts[:1] * len(items) if parts[1:] == (...,) else parts
    if len(kinds) != len(items):
        raise TypeError(f"{place} has {len(items)} items, not {len(kinds)}")
    return tuple(typed(kind, item, f"{place}[{at}]") for at, (kind, item) in enumerate(zip(kinds, items, strict=True)))


def _union(parts: tuple[Any, ...], data: Any, place: str) -> Any:
    """Return an optional value; the fields of results have no unions of several other types."""
    if data is None and type(None) in parts:
        return None
    return typed(next(part for part in parts if part is not type(None)), data, place)


def _literal(parts: tuple[Any, ...], data: Any, place: str) -> Any:
    """Return data if it is one of the values of a `Literal`."""
    if data not in parts:
        raise TypeError(f"{place} is {_short_repr(data)}, not one of {', '.join(map(repr, parts))}")
    return data


def _mapping(parts: tuple[Any, ...], data: Any, place: str) -> dict[str, Any]:
    """Return a dictionary; `parts` are the types of its keys and values."""
    items = _check_type(data, dict, place).items()
    return {typed(parts[0], name, place): typed(parts[1], item, f"{place}.{name}") for name, item in items}


_MAKERS: dict[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    tuple: _tuple,
    Mapping: _mapping,
    UnionType: _union,
    Literal: _literal,
}


def _check_type(data: Any, kind: type, place: str) -> Any:
    """Return data if it has exactly this type, else raise an error that says where it is."""
    if type(data) is not kind:  # isinstance would accept True as int
        raise TypeError(f"{place} is {_short_repr(data)}, not of type {kind.__name__}")
    return data


def _short_repr(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:60]}…"
