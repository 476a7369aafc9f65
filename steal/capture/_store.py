"""The interface of stores, which receive tensors while the model runs, and the store in memory."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from .._errors import DumpError
from .._key import Key, PlainKey
from .._records import Origin
from ..values._growth import concatenate
from ..values._packed import Packed, unpack
from ..values._raw import SMALL, contiguous_cpu, copy, small_bytes, tensor_from_bytes


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

    def put_small(self, data: bytes, dtype: torch.dtype, shape: tuple[int, ...], key: PlainKey, path: str) -> int:
        """Like `put`, for the bytes of a contiguous tensor on the CPU."""
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

    def add(self, key: PlainKey, packed: Packed, origin: Origin) -> None:
        """Add the record of a value by its packed spec; all its tensors were put before."""

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


_Stored = tuple[npt.NDArray[np.uint8] | bytes, torch.dtype, tuple[int, ...]]  # memory, dtype, shape


class MemoryStore:
    """Stores tensors in memory."""

    error: DumpError | None = None

    def __init__(self) -> None:
        self._tensors: list[_Stored] = []
        self._grown: list[tuple[int, int, int]] = []  # (first, tail, dim) of `extend`
        self._rows: list[tuple[Any, ...]] = []  # name, iteration, kind, packed spec, and `Origin`

    def put(self, tensor: torch.Tensor, key: Key, path: str) -> int:
        """See `Store.put`."""
        raw = tensor if tensor.is_cpu else contiguous_cpu(tensor)
        shape, address, nbytes = tuple(raw.shape), raw.data_ptr(), raw.nbytes
        if nbytes <= SMALL:
            return self.put_small(small_bytes(address, nbytes), raw.dtype, shape, key, path)
        memory = np.empty(nbytes, np.uint8)
        copy(memory.ctypes.data, address, nbytes)
        self._tensors.append((memory, raw.dtype, shape))
        return len(self._tensors) - 1

    def put_small(self, data: bytes, dtype: torch.dtype, shape: tuple[int, ...], key: PlainKey, path: str) -> int:  # noqa: ARG002  names are for files
        """See `Store.put_small`."""
        self._tensors.append((data, dtype, shape))
        return len(self._tensors) - 1

    def extend(self, first: int, tail: int, dim: int) -> int:
        """See `Store.extend`."""
        self._grown.append((first, tail, dim))
        return -len(self._grown)

    def get(self, reference: int) -> torch.Tensor:
        """See `Store.get`; a copy, as several records may contain the same tensor."""
        return self.view(reference) if reference < 0 else self.view(reference).clone()  # a concatenation is a copy

    def view(self, reference: int) -> torch.Tensor:
        """See `Store.view`."""
        if reference < 0:
            return concatenate(reference, self._grown, self.view)
        memory, dtype, shape = self._tensors[reference]
        # A copy of bytes, as torch has no read-only tensors.
        array = np.frombuffer(bytearray(memory), np.uint8) if isinstance(memory, bytes) else memory
        raw = torch.from_numpy(array) if len(array) else None  # None: an empty tensor
        return tensor_from_bytes(raw, dtype, torch.Size(shape))

    def add(self, key: PlainKey, packed: Packed, origin: Origin) -> None:
        """See `Store.add`."""
        self._rows.append((*key, packed, *origin))

    def rows(self, start: int) -> Iterable[Sequence[Any]]:
        """See `Store.rows`."""
        for name, iteration, kind, packed, *origin in self._rows[start:]:
            yield name, iteration, kind, unpack(packed, kind), *origin

    def add_failure(self, key: Key, exception: str) -> None:
        """Do nothing: the recorder keeps the failures."""

    def flush(self) -> int:
        """Return the number of records; in memory, none survives a kill."""
        return len(self._rows)

    def close(self) -> None:
        """Do nothing."""
