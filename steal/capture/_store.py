"""Where stolen tensors are put while the model runs."""

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
from ..values._raw import contiguous_cpu, copy, tensor_of


class Store(Protocol):
    """Takes tensors as the model makes them, and keeps the numbers that they have at that moment.

    Attributes:
        error: why it takes no more, if it doesn't.
    """

    error: DumpError | None

    def put(self, tensor: torch.Tensor, key: Key, path: str) -> int:
        """Keep a copy of `tensor`, which stands at `path` of `key`'s value; returns what stands for it in a spec.

        Args:
            tensor: on a device, or in main memory as `contiguous_cpu` gives it.
            key: of the value.
            path: inside the value.
        """
        ...

    def extend(self, first: int, tail: int, dim: int) -> int:
        """What stands for `first` and then `tail`, along dimension `dim`; a negative number."""
        ...

    def get(self, reference: int) -> torch.Tensor:
        """The tensor that `put` or `extend` returned `reference` for, on the CPU."""
        ...

    def view(self, reference: int) -> torch.Tensor:
        """The same, in the store's own memory if it has it there."""
        ...

    def add(self, key: Key, spec: Spec, origin: Origin) -> None:
        """Say that the value of `key`, as `spec` describes it, is complete: its tensors were all put before."""

    def rows(self, start: int) -> Iterable[Sequence[Any]]:
        """The records from number `start` on (see `Taken`)."""
        ...

    def add_failure(self, key: Key, exception: str) -> None:
        """Say that a call raised, so that there is no value of `key`."""

    def flush(self) -> int:
        """Wait until all records are where a kill can't take them; returns how many are."""
        ...

    def close(self) -> None:
        """Finish; nothing is put afterwards."""


_Kept = tuple[npt.NDArray[np.uint8], int, int, torch.dtype, tuple[int, ...]]
_ARENA = 2**20
_LARGE = 2**16


class MemoryStore:
    """Keeps copies in main memory, small ones side by side."""

    error: DumpError | None = None

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
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
            start = -(-self._end // 64) * 64  # what vector loads want
            if start + nbytes > _ARENA:
                self._arena, start = np.empty(_ARENA, np.uint8), 0
                self._address = self._arena.ctypes.data
            self._end = start + nbytes
            memory, address = self._arena, self._address + start
        copy(address, raw.data_ptr(), nbytes)
        self._kept.append((memory, start, nbytes, raw.dtype, tuple(raw.shape)))
        return len(self._kept) - 1

    def extend(self, first: int, tail: int, dim: int) -> int:
        """See `Store.extend`."""
        self._grown.append((first, tail, dim))
        return -len(self._grown)

    def get(self, reference: int) -> torch.Tensor:
        """See `Store.get`; a copy, as one tensor here may be several records'."""
        return self.view(reference) if reference < 0 else self.view(reference).clone()

    def view(self, reference: int) -> torch.Tensor:
        """See `Store.view`."""
        if reference < 0:
            return concatenate(reference, self._grown, self.view)
        memory, start, nbytes, dtype, shape = self._kept[reference]
        raw = torch.from_numpy(memory[start : start + nbytes]) if nbytes else None
        return tensor_of(raw, dtype, torch.Size(shape))

    def add(self, key: Key, spec: Spec, origin: Origin) -> None:
        """See `Store.add`."""
        self._rows.append((*key, marshal.dumps(spec), *origin))

    def rows(self, start: int) -> Iterable[Sequence[Any]]:
        """See `Store.rows`."""
        for name, iteration, kind, spec, *origin in self._rows[start:]:
            yield name, iteration, kind, marshal.loads(spec), *origin  # noqa: S302  written above

    def add_failure(self, key: Key, exception: str) -> None:
        """Nothing to do: the capture knows."""

    def flush(self) -> int:
        """Nothing to wait for; a kill takes all."""
        return len(self._rows)

    def close(self) -> None:
        """Nothing to do."""
