"""Detect tensors whose data is stored already, so that each is stored once."""

from collections import OrderedDict
from typing import Any

import torch

from ..private._torch import expired, free_weak_ref, weak_ref
from ._raw import checksum

# A weak reference to a storage: it keeps the storage's address from being reused, but not its memory.

# Nested tuples of plain values: Python's garbage collector stops tracking them after one pass, and there are many.
# Offset, shape, strides, dtype, `is_conj()` and `is_neg()`:
_Place = tuple[Any, tuple[int, ...], tuple[int, ...], torch.dtype, bool, bool]
_StoredView = tuple[_Place, int | None, int, int]  # place, checksum, reference, bytes (0 if not contiguous)
_Storage = tuple[int, int, tuple[_StoredView, ...]]  # weak reference, version, stored views
LookupKey = tuple[torch.UntypedStorage, int, int, _Place]  # storage, its identity, version, place
Location = tuple[int, int | None]  # reference, and the first byte inside that tensor; None if it is the whole tensor

_NO_STORAGE: _Storage = (0, -1, ())  # no storage has this version
_MAX_VIEWS = 8  # views remembered per storage
_SWEEP_COUNT = 2  # storages checked for each new one: more than one, so that the number of freed ones decreases


class StoredTensors:
    """The stored tensors by storage, version, offset, shape, strides and dtype.

    Some writes (`.data`, NumPy, custom kernels) bypass the version counter. So for tensors on the CPU a checksum of
    the bytes must match as well.
    """

    # This runs in every hook, so it avoids function calls.

    def __init__(self) -> None:
        self._storages: OrderedDict[int, _Storage] = OrderedDict()  # finds its first item at once after removals

    def __del__(self) -> None:
        for weak, _, _ in getattr(self, "_storages", {}).values():  # torch.compile makes instances without __init__
            free_weak_ref(weak)

    @staticmethod
    def lookup_key(tensor: torch.Tensor, flags: tuple[bool, bool]) -> LookupKey | None:
        """Return the key to look a tensor up by; None for an inference tensor, which has no version counter.

        Args:
            tensor: any strided tensor.
            flags: `is_conj()` and `is_neg()`.
        """
        try:
            version = tensor._version  # noqa: SLF001  documented, with this name
        except RuntimeError:
            return None
        storage = tensor.untyped_storage()
        place = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, *flags)
        return storage, storage._cdata, version, place  # noqa: SLF001  the documented identity of a storage

    def find(self, lookup: LookupKey, data_checksum: int | None, nbytes: int) -> Location | None:
        """Return where a tensor is stored; None if it is not, was modified since, or can't be tracked.

        Args:
            lookup: see `lookup_key`.
            data_checksum: the `checksum` of its bytes; None for a tensor on a device.
            nbytes: the number of bytes if it is contiguous, else 0.
        """
        storage, identity, version, place = lookup
        weak, stored_version, views = self._storages.get(identity, _NO_STORAGE)
        if stored_version != version or expired(weak):
            return None
        for stored_place, stored_checksum, reference, _ in views:
            if stored_place == place:
                return (reference, None) if stored_checksum == data_checksum else None
        if data_checksum is None or not nbytes:
            return None
        offset, _, _, dtype, _, _ = place
        start = offset * dtype.itemsize
        return _find_containing(views, storage, start, nbytes)

    def remember(self, lookup: LookupKey, data_checksum: int | None, nbytes: int, reference: int) -> None:
        """Remember that a tensor is stored as `reference` (see `find`)."""
        storage, identity, version, (offset, shape, strides, dtype, is_conj, is_neg) = lookup
        place = offset, tuple(shape), strides, dtype, is_conj, is_neg  # not torch.Size, which stays tracked
        view = (place, data_checksum, reference, 0 if data_checksum is None else nbytes)
        if identity not in self._storages:
            self._sweep()
            self._storages[identity] = (weak_ref(storage), version, (view,))
            return
        weak, stored_version, views = self._storages[identity]
        if expired(weak):
            free_weak_ref(weak)
            self._storages[identity] = (weak_ref(storage), version, (view,))
        else:
            others = views if stored_version == version else ()
            others = tuple(other for other in others if other[0] != place)[-_MAX_VIEWS:]
            self._storages[identity] = (weak, version, (*others, view))

    def _sweep(self) -> None:
        """Check the oldest storages, and release the weak references to those that are freed.

        This must not be put off: a freed storage keeps little memory, but fragments that of the model's tensors.
        """
        for _ in range(min(_SWEEP_COUNT, len(self._storages))):
            identity = next(iter(self._storages))
            weak = self._storages[identity][0]
            if expired(weak):
                free_weak_ref(weak)
                del self._storages[identity]
            else:
                self._storages.move_to_end(identity)  # the last one to be checked again


def _find_containing(
    views: tuple[_StoredView, ...], storage: torch.UntypedStorage, start: int, nbytes: int
) -> Location | None:
    """Return the stored tensor that contains these bytes, if checking it costs less than storing them again."""
    for (offset, _, _, dtype, _, _), data_checksum, reference, size in views:
        begin = offset * dtype.itemsize
        if begin <= start and start + nbytes <= begin + size <= storage.nbytes() and size <= 8 * nbytes:
            same = checksum(storage.data_ptr() + begin, size) == data_checksum
            return (reference, start - begin) if same else None
    return None
