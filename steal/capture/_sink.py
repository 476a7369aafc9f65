"""A store that passes each record to a function instead of keeping it."""

from collections.abc import Callable
from typing import Any

import torch

from .._key import Key, PlainKey
from .._records import Origin
from ..values._decode import decode
from ..values._packed import Packed, unpack
from ..values._raw import no_modes_or_grad
from ._store import MemoryStore


class SinkStore(MemoryStore):
    """Calls `sink` with each record (see `Store`); tensors are kept only until their record is complete."""

    def __init__(self, sink: Callable[[Key, Any], object]) -> None:
        super().__init__()
        self._sink = sink
        self._pending: dict[int, torch.Tensor] = {}  # by reference
        self._count = 0

    def put(self, tensor: torch.Tensor, key: Key, path: str) -> int:  # noqa: ARG002  names are for files
        """See `Store.put`."""
        self._count += 1
        with no_modes_or_grad():
            self._pending[self._count] = tensor.detach().clone()
        return self._count

    def view(self, reference: int) -> torch.Tensor:
        """See `Store.view`."""
        return self._pending[reference]

    def add(self, key: PlainKey, packed: Packed, origin: Origin) -> None:  # noqa: ARG002  as above
        """Pass the value to the sink, and release its tensors."""
        with no_modes_or_grad():  # the sink's operations must not affect the model
            self._sink(Key(*key), decode(unpack(packed, key[2]), self._pending.pop))
