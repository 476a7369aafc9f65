"""Detect tensors with uninitialized memory, whose contents differ from run to run."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..private._torch import pytree
from ..values._dtypes import dtype_and_shape, is_storable
from ..values._foreign import Skipped

_ALLOCATORS = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def allocates_uninitialized(operator: Any) -> bool:
    """Return whether an operator allocates memory without initializing it."""
    return getattr(operator, "_opname", "") in _ALLOCATORS


class UninitializedMemory:
    """Tracks uninitialized storages until something is written to any part of them."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def skip(self, value: Any) -> Any:
        """Return `value` with uninitialized tensors replaced by `Skipped`."""
        return pytree.tree_map_only(torch.Tensor, self._skip_uninitialized, value) if self._storages else value

    def track(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Update the tracked storages after a call."""
        if allocates_uninitialized(operator):
            for tensor in filter(_has_storage, pytree.tree_leaves(output)):
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # noqa: SLF001  the identity of a storage
        elif self._storages and operator._schema.is_mutable:  # noqa: SLF001  there is no public API
            for tensor in filter(_has_storage, pytree.tree_leaves(_written_arguments(operator, args, kwargs))):
                self._storages.pop(tensor.untyped_storage()._cdata, None)  # noqa: SLF001  likewise

    def _skip_uninitialized(self, tensor: torch.Tensor) -> Any:
        """Return a placeholder for a tensor with uninitialized memory; any other tensor as it is."""
        storage = self._storages.get(tensor.untyped_storage()._cdata) if _has_storage(tensor) else None  # noqa: SLF001  likewise
        if storage is None or storage.expired():  # type: ignore[no-untyped-call]
            return tensor
        return Skipped(dtype_and_shape(tensor), "it is uninitialized")


def _written_arguments(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments that an operator writes to, by its schema."""
    arguments = dict(zip((argument.name for argument in operator._schema.arguments), args, strict=False)) | kwargs  # noqa: SLF001
    aliases = {argument.name: argument.alias_info for argument in operator._schema.arguments}  # noqa: SLF001
    return [value for name, value in arguments.items() if (alias := aliases[name]) is not None and alias.is_write]


def _has_storage(value: Any) -> bool:
    """Return whether a value is a tensor whose memory can be read."""
    return isinstance(value, torch.Tensor) and is_storable(value)
