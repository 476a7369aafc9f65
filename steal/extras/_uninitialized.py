"""Memory that an ATen call has reserved and none has written to: what it holds differs from run to run."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from ..values._dtypes import not_storable, short
from ..values._foreign import Skipped

_RESERVE = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def reserves(operator: Any) -> bool:
    """Whether an operator gives memory as it finds it."""
    return getattr(operator, "_opname", "") in _RESERVE


class Unwritten:
    """Knows such memory until something is written to it (a part counts as the whole)."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def left_out(self, value: Any) -> Any:
        """`value` without the numbers of tensors in such memory."""
        return pytree.tree_map_only(torch.Tensor, self._told, value) if self._storages else value

    def note(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A call has been made."""
        if reserves(operator):
            for tensor in filter(_has_storage, pytree.tree_leaves(output)):
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # noqa: SLF001  what tells storages apart
        elif self._storages and operator._schema.is_mutable:  # noqa: SLF001  nothing public tells
            for tensor in filter(_has_storage, pytree.tree_leaves(_written(operator, args, kwargs))):
                self._storages.pop(tensor.untyped_storage()._cdata, None)  # noqa: SLF001  likewise

    def _told(self, tensor: torch.Tensor) -> Any:
        known = self._storages.get(tensor.untyped_storage()._cdata) if _has_storage(tensor) else None  # noqa: SLF001  likewise
        if known is None or known.expired():  # type: ignore[no-untyped-call]
            return tensor
        return Skipped(short(tensor), "nothing was written to it yet")


def _written(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    known = dict(zip((argument.name for argument in operator._schema.arguments), args, strict=False)) | kwargs  # noqa: SLF001
    aliases = {argument.name: argument.alias_info for argument in operator._schema.arguments}  # noqa: SLF001
    return [value for name, value in known.items() if (alias := aliases[name]) is not None and alias.is_write]


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not_storable(value) is None
