"""The arguments of an operator call: tensors, and settings such as numbers, dtypes and strings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from filch.steal.private._torch import pytree

_AS_TEXT = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.SymInt, torch.SymFloat, torch.SymBool)
_LONG = 32  # items; a longer list is data, not a setting
_LEAVES = (torch.Tensor, fx.Node, bool, int, float, str, torch.dtype, torch.device, type(None))


def settings_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that are neither tensors nor None, by their names in the operator's schema.

    Args:
        target: the operator. Without a schema, its positional arguments are named `arg0`, `arg1`, ….
        args: the positional arguments; a tensor may be a `torch.Tensor` or a node of a torch graph.
        kwargs: the keyword arguments.

    Returns:
        plain Python values: numbers, strings and lists of them; dtypes, devices and layouts as strings.
    """
    return {name: _plain(item) for name, item in named_arguments(target, args, kwargs).items() if _is_setting(item)}


def named_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names; see `settings_of`."""
    names, _ = _names(target)
    named = {names[index] if index < len(names) else f"arg{index}": item for index, item in enumerate(args)}
    return {**named, **kwargs}


def written_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an operator writes to, according to its schema."""
    _, written = _names(target)
    if not written:
        return []
    named = named_arguments(target, args, kwargs)
    return [named[name] for name in written if name in named]


def _names(target: Any) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of an operator's arguments, and of those that it writes to; nothing without a schema."""
    return _names_in_schema(target) if getattr(target, "_schema", None) is not None else ((), ())


@lru_cache(maxsize=4096)  # torch makes new objects each time that a schema is read
def _names_in_schema(target: Any) -> tuple[Sequence[str], Sequence[str]]:
    arguments = target._schema.arguments  # noqa: SLF001  it has no other access
    written = (item.name for item in arguments if item.alias_info is not None and item.alias_info.is_write)
    return tuple(item.name for item in arguments), tuple(written)


def _is_setting(item: Any) -> bool:
    """Whether an argument contains neither tensors nor long data, and is not None."""
    leaves = leaves_of(item)
    if not leaves or all(leaf is None for leaf in leaves):
        return isinstance(item, list | tuple) and not leaves  # `[]`: all dimensions
    return len(leaves) <= _LONG and not any(isinstance(leaf, fx.Node | torch.Tensor) for leaf in leaves)


def _plain(item: Any) -> Any:
    """Convert an argument to plain Python values."""
    if item is None or isinstance(item, bool | int | float | str):
        return item
    if isinstance(item, list | tuple):
        return [_plain(part) for part in item]
    if isinstance(item, _AS_TEXT):
        return str(item).removeprefix("torch.")
    return f"<{type(item).__name__}>"  # a function, a storage, a generator: its repr may have any length


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Return the tensors among the arguments of a call, in order."""
    items = (*args, *kwargs.values())
    return (leaf for item in items for leaf in leaves_of(item) if isinstance(leaf, torch.Tensor))


def leaves_of(item: Any) -> list[Any]:
    """Return the leaves of an argument or a result, as `pytree.tree_leaves` does, which takes several times as long."""
    if type(item) in (list, tuple):
        return [leaf for part in item for leaf in leaves_of(part)]
    return [item] if isinstance(item, _LEAVES) else pytree.tree_leaves(item)


def map_leaves(function: Callable[[Any], Any], item: Any) -> Any:
    """Replace the leaves of an argument, as `pytree.tree_map` does, which takes several times as long."""
    if type(item) in (list, tuple):
        return type(item)(map_leaves(function, part) for part in item)
    if type(item) is dict:
        return {name: map_leaves(function, part) for name, part in item.items()}
    return function(item) if isinstance(item, _LEAVES) else pytree.tree_map(function, item)
