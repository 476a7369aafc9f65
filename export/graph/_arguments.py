"""The arguments of an operator call: tensors, and settings such as numbers, dtypes and strings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

_AS_TEXT = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.SymInt, torch.SymFloat, torch.SymBool)
_LONG = 32  # items; a longer list is data, not a setting


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
    schema = getattr(target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    named = {names[index] if index < len(names) else f"arg{index}": item for index, item in enumerate(args)}
    return {**named, **kwargs}


def written_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an operator writes to, according to its schema."""
    schema = getattr(target, "_schema", None)
    arguments = schema.arguments if schema is not None else ()
    written = [item.name for item in arguments if item.alias_info is not None and item.alias_info.is_write]
    named = named_arguments(target, args, kwargs)
    return [named[name] for name in written if name in named]


def _is_setting(item: Any) -> bool:
    """Whether an argument contains neither tensors nor long data, and is not None."""
    leaves = pytree.tree_leaves(item)
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
    return (item for item in pytree.tree_leaves((list(args), dict(kwargs))) if isinstance(item, torch.Tensor))
