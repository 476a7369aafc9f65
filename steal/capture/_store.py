"""The interface of stores, which receive tensors while the model runs, and the store in memory."""

import marshal
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from .._errors import DumpError
from .._key import Key
from .._records import Origin
from ..values._foreign import Spec
from ..values._growth import concatenate
from ..values._raw import contiguous_cpu, copy, tensor_from_bytes


class Store(Protocol):
    """Stores tensors as they are at the moment of the call, and records that refer to them.

    Attributes:
        error: why nothing more is stored; None if it still is.
    """

    error: DumpError | None

    def put(self, tensor: torch.Tensor, key: Key, path: str) -> int:
        """Copy a tensor into the store, and return its reference for specs.

        Args:
            tensor: on a device, or a result of `contiguous_cpu`.
            key: the key of the value that contains it.
            path: its path in the value.
        """
        ...

    def extend(self, first: int, tail: int, dim: int) -> int:
        """Return a negative reference to the concatenation of two stored tensors along a dimension."""
        ...

    def get(self, reference: int) -> torch.Tensor:
        """Return a copy of the tensor that `put` or `extend` returned `reference` for, on the CPU."""
        ...

    def view(self, reference: int) -> torch.Tensor:
        """Return the tensor without a copy, if the store has it in memory."""
        ...

    def add(self, key: Key, spec: Spec, origin: Origin) -> None:
        """Add the record of a value; all its tensors were put before."""

    def rows(self, start: int) -> Iterable[Sequence[Any]]:
        """Return the rows of all records from index `start` on (see `LazyRecords`)."""
        ...

    def add_failure(self, key: Key, exception: str) -> None:
        """Add a call that raised, by the key that its output would have had."""

    def flush(self) -> int:
        """Wait until all records so far survive a kill; return their number."""
        ...

    def close(self) -> None:
        """Finish; nothing is stored afterwards."""


_Stored = tuple[npt.NDArray[np.uint8], int, int, torch.dtype, tuple[int, ...]]  # memory, start, bytes, dtype, shape
_ARENA = 2**20  # bytes of an array that small tensors share
_LARGE = 2**16  # bytes from which on a tensor has an array of its own


class MemoryStore:
    """Stores tensors in memory; small ones share arrays."""

    error: DumpError | None = None

    def __init__(self) -> None:
        self._tensors: list[_Stored] = []
        self._grown: list[tuple[int, int, int]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._arena = np.empty(_ARENA, np.uint8)
        self._address, self._end = self._arena.ctypes.data, 0

    def put(self, tensor: torch.Tensor, key: Key, path: str) -> int:  # noqa: ARG002  names are for files
        """See `Store.put`."""
        raw = tensor if tensor.is_cpu else contiguous_cpu(tensor)
        nbytes = raw.nbytes
        if nbytes > _LARGE:
            memory, start = np.empty(nbytes, np.uint8), 0
            address = memory.ctypes.data
        else:
            start = -(-self._end // 64) * 64  # aligned for vector loads
            if start + nbytes > _ARENA:
                self._arena, start = np.empty(_ARENA, np.uint8), 0
                self._address = self._arena.ctypes.data
            self._end = start + nbytes
            memory, address = self._arena, self._address + start
        copy(address, raw.data_ptr(), nbytes)
        self._tensors.append((memory, start, nbytes, raw.dtype, tuple(raw.shape)))
        return len(self._tensors) - 1

    def extend(self, first: int, tail: int, dim: int) -> int:
        """See `Store.extend`."""
        self._grown.append((first, tail, dim))
        return -len(self._grown)

    def get(self, reference: int) -> torch.Tensor:
        """See `Store.get`; a copy, as several records may contain the same tensor."""
        return self.view(reference) if reference < 0 else self.view(reference).clone()

    def view(self, reference: int) -> torch.Tensor:
        """See `Store.view`."""
        if reference < 0:
            return concatenate(reference, self._grown, self.view)
        memory, start, nbytes, dtype, shape = self._tensors[reference]
        raw = torch.from_numpy(memory[start : start + nbytes]) if nbytes else None
        return tensor_from_bytes(raw, dtype, torch.Size(shape))

    def add(self, key: Key, spec: Spec, origin: Origin) -> None:
        """See `Store.add`."""
        self._rows.append((*key, marshal.dumps(spec), *origin))

    def rows(self, start: int) -> Iterable[Sequence[Any]]:
        """See `Store.rows`."""
        for name, iteration, kind, spec, *origin in self._rows[start:]:
            yield name, iteration, kind, marshal.loads(spec), *origin  # noqa: S302  written above

    def add_failure(self, key: Key, exception: str) -> None:
        """Do nothing: the recorder keeps the failures."""

    def flush(self) -> int:
        """Return the number of records; in memory, none survives a kill."""
        return len(self._rows)

    def close(self) -> None:
        """Do nothing."""
