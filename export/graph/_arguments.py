"""What an operator is told besides its tensors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

_WORDS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.SymInt, torch.SymFloat, torch.SymBool)
_LONG = 32  # items; a list of more is some table, and no setting


def told(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that are no tensors and not None, by the names of the operator's schema.

    Args:
        target: the operator; the positional arguments of one without a schema are called `arg0`, `arg1`, ….
        args: the positional arguments: tensors may be tensors, or the nodes of a torch graph.
        kwargs: the keyword arguments.

    Returns:
        plain Python values: numbers, text, and lists of them; types, devices and layouts as text.
    """
    schema = getattr(target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    named = [(names[index] if index < len(names) else f"arg{index}", item) for index, item in enumerate(args)]
    return {name: _plain(item) for name, item in (*named, *kwargs.items()) if _is_setting(item)}


def _is_setting(item: Any) -> bool:
    leaves = pytree.tree_leaves(item)
    if not leaves or all(leaf is None for leaf in leaves):
        return isinstance(item, list | tuple) and not leaves  # `[]`: all dimensions
    return len(leaves) <= _LONG and not any(isinstance(leaf, fx.Node | torch.Tensor) for leaf in leaves)


def _plain(item: Any) -> Any:
    if item is None or isinstance(item, bool | int | float | str):
        return item
    if isinstance(item, list | tuple):
        return [_plain(part) for part in item]
    if isinstance(item, _WORDS):
        return str(item).removeprefix("torch.")
    return f"<{type(item).__name__}>"  # a function, a storage, a generator: its text may be of any length


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of a call, in their order."""
    return (item for item in pytree.tree_leaves((list(args), dict(kwargs))) if isinstance(item, torch.Tensor))
