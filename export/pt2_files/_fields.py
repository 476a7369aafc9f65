"""Readers that convert JSON to the dataclasses of torch's schema; fields without a reader are left out."""

import dataclasses
import enum
import keyword
from collections.abc import Callable, Collection
from typing import Any

from ._archive import StoredError

Reader = Callable[[Any], Any]
_LONGEST = 10_000  # characters of a string argument
_INFINITE = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def record(cls: type[Any], **fields: Reader) -> Reader:
    """Return a reader of objects as a dataclass; fields that this version of torch does not have are left out."""
    known = {item.name: item for item in dataclasses.fields(cls)}
    readers = {name: reader for name, reader in fields.items() if name in known}
    # The fields without a default.
    required = {name for name, item in known.items() if item.default is item.default_factory is dataclasses.MISSING}

    def read(data: Any) -> Any:
        members = members_of(data)
        values = {name: _at(name, reader, members[name]) for name, reader in readers.items() if name in members}
        if missing := required - values.keys():
            raise StoredError(f"it has no {min(missing)!r}")
        return cls(**values)

    return read


def union(cls: type[Any], **fields: Reader) -> Reader:
    """Return a reader of objects with one key, which is the type of the value, as one of torch's unions."""
    known = {item.name for item in dataclasses.fields(cls)}
    readers = {name: reader for name, reader in fields.items() if name in known}

    def read(data: Any) -> Any:
        members = members_of(data)
        tag = next(iter(members), None)
        if len(members) != 1 or tag not in readers:
            raise StoredError(f"{tag!r:.80} is not one of {', '.join(readers)}")
        return cls.create(**{tag: readers[tag](members[tag])})

    return read


def list_of(reader: Reader, most: int | None = None) -> Reader:
    """Return a reader of lists of at most `most` items."""

    def read(data: Any) -> list[Any]:
        expect(isinstance(data, list), data, "a list")
        if most is not None and len(data) > most:
            raise StoredError(f"there are {len(data):,}, and at most {most:,} are read")
        return [reader(item) for item in data]

    return read


def dict_of(key: Reader, reader: Reader) -> Reader:
    """Return a reader of objects as dictionaries."""
    return lambda data: {key(name): reader(value) for name, value in members_of(data).items()}


def optional(reader: Reader) -> Reader:
    """Return a reader that accepts null, too."""
    return lambda data: None if data is None else reader(data)


def deferred(find: Callable[[], Reader]) -> Reader:
    """Return a reader that is looked up when it is used, for recursive types."""
    return lambda data: find()(data)  # noqa: PLW0108  `find` can't be called yet: the reader does not exist


def empty(data: Any) -> Any:
    """Refuse anything but an empty value."""
    if data:
        raise StoredError("it contains objects of classes, which only code can create")
    return data


def enum_of(cls: type[enum.IntEnum], allowed: Collection[int] | None = None) -> Reader:
    """Return a reader of enum members, given by their numbers."""

    def read(data: Any) -> enum.IntEnum:
        is_member = type(data) is int and data in {*cls}
        expect(is_member and (allowed is None or data in allowed), data, f"a supported {cls.__name__}")
        return cls(data)

    return read


def integer(data: Any) -> int:
    """Read an integer of 64 bits."""
    expect(type(data) is int and -(2**63) <= data < 2**64, data, "a 64-bit integer")
    return int(data)


def size(data: Any) -> int:
    """Read the size of a dimension, or a stride."""
    expect(0 <= integer(data) < 2**63, data, "a size")
    return int(data)


def number(data: Any) -> float:
    """Read a floating-point number."""
    if isinstance(data, str) and data in _INFINITE:
        return _INFINITE[data]
    if type(data) is not float:
        integer(data)
    return float(data)


def boolean(data: Any) -> bool:
    """Read a bool."""
    if not isinstance(data, bool):
        raise StoredError(f"{data!r:.80} is neither true nor false")
    return data


def text(data: Any) -> str:
    """Read a single line of text."""
    expect(isinstance(data, str) and len(data) <= _LONGEST and data.isprintable(), data, "a single line of text")
    return str(data)


def identifier(data: Any) -> str:
    """Read the name of a value; torch writes it into the Python code that it generates for a graph."""
    is_identifier = bool(data) and text(data).isidentifier() and not keyword.iskeyword(data)
    expect(is_identifier, data, "a valid name of a value")
    return str(data)


def optional_identifier(data: Any) -> str:
    """Read the name of a value, or an empty string."""
    return "" if data == "" else identifier(data)


def path(data: Any) -> str:
    """Read the path of a weight; torch may write it into Python code, between quotation marks."""
    problem = "it has a quotation mark or a backslash; rename the module"
    expect(not {*"\"'\\"} & {*text(data)}, data, f"a valid name of a weight: {problem}")
    return str(data)


def members_of(data: Any) -> dict[str, Any]:
    """Read the members of a JSON object by name, whatever they are."""
    expect(isinstance(data, dict), data, "an object")
    return dict(data)


def expect(holds: bool, data: Any, what: str) -> None:  # noqa: FBT001  the condition comes first, as in `assert`
    """Raise a `StoredError` that says that the data are not what was expected, unless a condition holds."""
    if not holds:
        raise StoredError(f"{data!r:.80} is not {what}")


def _at(name: str, reader: Reader, data: Any) -> Any:
    """Read a field; an error message begins with its name."""
    try:
        return reader(data)
    except StoredError as error:
        raise StoredError(f"{name}: {error}") from None
