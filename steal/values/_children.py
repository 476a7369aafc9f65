"""Iterate over the items of any container: which values are containers, and the path of each item."""

import dataclasses
import enum
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from types import MemberDescriptorType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..private._torch import pytree
from ..private._transformers import CACHES, MODELS
from ._foreign import Foreign

Child = tuple[str, Any, Any]  # (path step, key, child)

_UNSET = object()
_SEQUENCES: tuple[tuple[Any, str], ...] = ((tuple, "tuple"), (list, "list"), (deque, "list"))


def children(value: Any) -> tuple[str, Iterator[Child]] | None:
    """Return the tag of a container and its children as (path step, key, child); None if it is not a container.

    The other tags are `"fields"` of an object with named fields, and `"state"` of one with all its attributes. In a
    `"tuple"`, `"list"`, `"set"` or `"dict"` the path step of an item begins with `[`. Instance attributes of a
    subclass follow the items, with steps like `.name`. Items are read through the built-in base class, so that no
    overridden method runs and no iterator is consumed.
    """
    cls = type(value)  # not isinstance: a value can override `__class__`, or raise
    if issubclass(cls, torch.Tensor | torch.Size | enum.Enum):
        return None
    if cls is Foreign:
        return value.kind, _foreign(value)
    if issubclass(cls, tuple) and (fields := getattr(cls, "_fields", None)) is not None:
        return "fields", _named(zip(fields, tuple.__iter__(value), strict=True))
    for base, tag in _SEQUENCES:
        if issubclass(cls, base):
            return tag, _with_attributes(value, base, _indexed(base.__iter__(value)))
    for base in (set, frozenset):
        if issubclass(cls, base):
            return "set", _with_attributes(value, base, _indexed(sorted(base.__iter__(value), key=_sort_key)))
    if issubclass(cls, Mapping):
        return _mapping(cls, value)
    return _object(cls, value)


def _mapping(cls: type, value: Any) -> tuple[str, Iterator[Child]]:
    """Return the tag and the children of a mapping."""
    if dataclasses.is_dataclass(cls):  # transformers' ModelOutput, which omits fields that are None
        return "fields", _named(value.items())
    if issubclass(cls, dict):
        base = OrderedDict if issubclass(cls, OrderedDict) else dict
        return "dict", _with_attributes(value, base, _keyed(list(base.items(value))))
    return "dict", _keyed(value.items())


def _object(cls: type, value: Any) -> tuple[str, Iterator[Child]] | None:
    """Return the tag and the children of an object with named fields; None for any other object."""
    if issubclass(cls, np.ma.MaskedArray):
        return "fields", _named([("data", np.ma.getdata(value)), ("mask", np.ma.getmaskarray(value))])
    if dataclasses.is_dataclass(cls):
        values = ((field.name, getattr(value, field.name, _UNSET)) for field in dataclasses.fields(cls))
        return "fields", _named(pair for pair in values if pair[1] is not _UNSET)
    if issubclass(cls, SimpleNamespace):
        return "fields", _named(list(vars(value).items()))
    if is_cache_class(cls):
        return "state", _named(list(vars(value).items()))
    if (node := pytree.SUPPORTED_NODES.get(cls)) is not None:
        return "fields", _named(_flattened(node, value))
    return None


def is_cache_class(cls: type) -> bool:
    """Return whether a class is a cache of transformers, whose instances are fully described by their attributes."""
    return any(
        base.__module__ == CACHES or (base.__module__.startswith(MODELS) and "Cache" in base.__name__)
        for base in cls.__mro__[:-1]
    )


def _foreign(value: Foreign) -> Iterator[Child]:
    """Return the children of the object that a `Foreign` stands for."""
    if value.kind in ("fields", "state"):
        yield from _named(value.fields.items())
    else:
        yield from _keyed(value.fields.items())
        yield from _named(value.attributes.items())


def _flattened(node: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Return the (name, item) pairs of a class that is registered with torch's pytree."""
    if node.flatten_with_keys_fn is None:
        items, context = node.flatten_fn(value)
        yield from ((str(index), item) for index, item in enumerate(items))
    else:
        items, context = node.flatten_with_keys_fn(value)
        yield from (
            (str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))), item) for key, item in items
        )
    if context is not None:
        yield "context", context


def _with_attributes(value: Any, base: type, items: Iterator[Child]) -> Iterator[Child]:
    """Yield the items, then the attributes of an instance of a subclass of `base`."""
    yield from items
    if type(value) is not base:
        yield from _named(attributes(value))


def attributes(value: Any) -> list[tuple[str, Any]]:
    """Return an object's instance attributes, from `__dict__` and slots, without running code of its class."""
    slots = [pair for pair in slots_of(type(value)).items() if pair[0] != "__dict__"]
    values = [(name, slot.__get__(value)) for name, slot in slots if _has_value(slot, value)]
    return values + list(getattr(value, "__dict__", {}).items())


def slots_of(cls: type) -> dict[str, MemberDescriptorType]:
    """Return the slots that a class and its bases declare, by name."""
    declared = [pair for base in cls.__mro__ if "__slots__" in vars(base) for pair in vars(base).items()]
    return {name: slot for name, slot in declared if isinstance(slot, MemberDescriptorType)}


def _has_value(slot: MemberDescriptorType, value: Any) -> bool:
    """Return whether a slot of an object has a value; one that was never assigned has none."""
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _sort_key(item: Any) -> tuple[str, str]:
    """Return a sort key for elements of a set, whose iteration order differs between processes."""
    return type(item).__qualname__, repr(item) if type(item) in (str, bytes, int, float, bool) else ""


def _named(items: Iterable[tuple[Any, Any]]) -> Iterator[Child]:
    """Return children with path steps like `.name`."""
    return ((f".{name}", name, item) for name, item in items)


def _indexed(items: Iterable[Any]) -> Iterator[Child]:
    """Return children with path steps like `[0]`."""
    return ((f"[{index}]", index, item) for index, item in enumerate(items))


def _keyed(items: Iterable[tuple[Any, Any]]) -> Iterator[Child]:
    """Return children with path steps like `['key']`."""
    return ((step_to(key), key, item) for key, item in items)


def step_to(key: Any) -> str:
    """Return the path step of an item from its key."""
    try:
        return f"[{key!r}]"
    except Exception:  # noqa: BLE001  the key's `__repr__` raises
        return f"[<{type(key).__name__}>]"
