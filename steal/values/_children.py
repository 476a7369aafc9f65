"""How values are taken apart: which are containers, and what each holds under which name."""

import dataclasses
import enum
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from types import MemberDescriptorType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ._foreign import Foreign

Child = tuple[str, Any, Any]  # (path step, key, child)

_UNSET = object()
_SEQUENCES: tuple[tuple[Any, str], ...] = ((tuple, "tuple"), (list, "list"), (deque, "list"))


def children(value: Any) -> tuple[str, Iterator[Child]] | None:
    """How a container is taken apart: its tag, and (path step, key, child) for each child; None for no container.

    In a `"tuple"`, `"list"`, `"set"` or `"dict"` the step of an item begins with `[`; what an instance of a subclass
    has besides its items follows, as `.name`. Items of those are read as they are stored, whatever the subclass makes
    of them: no code of a user's runs, and nothing is consumed.
    """
    cls = type(value)  # `isinstance` asks the value, which may lie, or raise
    if issubclass(cls, torch.Tensor | torch.Size | enum.Enum):
        return None
    if cls is Foreign:
        return value.kind, _foreign(value)
    if issubclass(cls, tuple) and (fields := getattr(cls, "_fields", None)) is not None:
        return "fields", _named(zip(fields, tuple.__iter__(value), strict=True))
    for base, tag in _SEQUENCES:
        if issubclass(cls, base):
            return tag, _besides(value, base, _indexed(base.__iter__(value)))
    for base in (set, frozenset):
        if issubclass(cls, base):
            return "set", _besides(value, base, _indexed(sorted(base.__iter__(value), key=_place)))
    if issubclass(cls, Mapping):
        return _mapping(cls, value)
    return _object(cls, value)


def _mapping(cls: type, value: Any) -> tuple[str, Iterator[Child]]:
    if dataclasses.is_dataclass(cls):  # ModelOutput is one, with None fields left out, as everybody reads it
        return "fields", _named(value.items())
    if issubclass(cls, dict):
        base = OrderedDict if issubclass(cls, OrderedDict) else dict
        return "dict", _besides(value, base, _keyed(list(base.items(value))))
    return "dict", _keyed(value.items())


def _object(cls: type, value: Any) -> tuple[str, Iterator[Child]] | None:
    if issubclass(cls, np.ma.MaskedArray):
        return "fields", _named([("data", np.ma.getdata(value)), ("mask", np.ma.getmaskarray(value))])
    if dataclasses.is_dataclass(cls):
        held = ((field.name, getattr(value, field.name, _UNSET)) for field in dataclasses.fields(cls))
        return "fields", _named(pair for pair in held if pair[1] is not _UNSET)
    if issubclass(cls, SimpleNamespace):
        return "fields", _named(list(vars(value).items()))
    if is_state_holder(cls):
        return "state", _named(list(vars(value).items()))
    if (node := pytree.SUPPORTED_NODES.get(cls)) is not None:
        return "fields", _named(_flattened(node, value))
    return None


def is_state_holder(cls: type) -> bool:
    """Whether a class is nothing but its attributes, which are enough to rebuild it: the caches of transformers."""
    return any(
        base.__module__ == "transformers.cache_utils"
        or (base.__module__.startswith("transformers.models.") and "Cache" in base.__name__)
        for base in cls.__mro__[:-1]
    )


def _foreign(value: Foreign) -> Iterator[Child]:
    if value.kind in ("fields", "state"):
        yield from _named(value.fields.items())
    else:
        yield from _keyed(value.fields.items())
        yield from _named(value.attributes.items())


def _flattened(node: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """What torch was told to flatten a class by; its names, where it was told some."""
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


def _besides(value: Any, base: type, items: Iterator[Child]) -> Iterator[Child]:
    yield from items
    if type(value) is not base:
        yield from _named(attributes(value))


def attributes(value: Any) -> list[tuple[str, Any]]:
    """What an object holds in its `__dict__` and its slots, read without running code of its class."""
    slots = [pair for pair in slots_of(type(value)).items() if pair[0] != "__dict__"]
    found = [(name, slot.__get__(value)) for name, slot in slots if _is_set(slot, value)]
    return found + list(getattr(value, "__dict__", {}).items())


def slots_of(cls: type) -> dict[str, MemberDescriptorType]:
    """The slots that the Python classes among a class's bases declare, by name."""
    declared = [base for base in cls.__mro__ if "__slots__" in vars(base)]
    return {
        name: slot for base in declared for name, slot in vars(base).items() if isinstance(slot, MemberDescriptorType)
    }


def _is_set(slot: MemberDescriptorType, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _place(item: Any) -> tuple[str, str]:
    """Where an element of a set stands: sets of strings are iterated in another order in each process."""
    return type(item).__qualname__, repr(item) if type(item) in (str, bytes, int, float, bool) else ""


def _named(items: Iterable[tuple[Any, Any]]) -> Iterator[Child]:
    return ((f".{name}", name, item) for name, item in items)


def _indexed(items: Iterable[Any]) -> Iterator[Child]:
    return ((f"[{index}]", index, item) for index, item in enumerate(items))


def _keyed(items: Iterable[tuple[Any, Any]]) -> Iterator[Child]:
    return ((step_to(key), key, item) for key, item in items)


def step_to(key: Any) -> str:
    """The path step to the item of this key."""
    try:
        return f"[{key!r}]"
    except Exception:  # noqa: BLE001  a key that can't write itself leads to its item all the same
        return f"[<{type(key).__name__}>]"
