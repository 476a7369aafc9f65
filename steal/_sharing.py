"""Knows again a tensor whose numbers were taken before, so that one tensor is kept once."""

from typing import Any, NamedTuple

import torch

from ._raw import checksum

# A weak reference to a storage, as torch counts them: it keeps the storage's address from being used anew, no more.
_expired: Any = torch.UntypedStorage._expired  # noqa: SLF001  what torch.multiprocessing follows storages by
_weak: Any = torch.UntypedStorage._weak_ref  # noqa: SLF001  likewise
_free: Any = torch.UntypedStorage._free_weak_ref  # noqa: SLF001  likewise

# Tuples of plain things all the way down: Python's garbage collector looks at them once, and they are many.
_Place = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, bool, bool]
_Kept = tuple[_Place, int | None, int, int]  # where, the checksum, the reference, the bytes if they are in one piece
_Storage = tuple[int, int, tuple[_Kept, ...]]  # the weak reference, the version and what is kept of it

_MOST = 8  # views of one storage that are remembered
_SWEPT = 2  # more than come at a time, so that those that are gone get fewer


class Known(NamedTuple):
    """A tensor that is kept already.

    Attributes:
        reference: what the store calls it.
        start: where the wanted bytes begin in it.
        whole: whether it is the wanted tensor itself, and not one that it lies in.
    """

    reference: int
    start: int
    whole: bool


class Sharing:
    """The tensors that are kept, by storage, version, offset, shape, strides and dtype.

    The version counter does not see all that changes a tensor: `.data`, numpy and hand-written kernels go past it. So
    a checksum of the bytes has to be the same as well, where they can be read at once, in main memory.
    """

    # It runs in every hook: no call is made that can be spared.

    def __init__(self) -> None:
        self._storages: dict[int, _Storage] = {}

    def __del__(self) -> None:
        for alive, _, _ in getattr(self, "_storages", {}).values():  # there is none if torch.compile made it
            _free(alive)

    def find(self, tensor: torch.Tensor, content: int | None) -> Known | None:
        """Where `tensor` is kept, or None if it isn't, was changed, or can't be followed.

        Args:
            tensor: any strided tensor.
            content: the `checksum` of its bytes; None on a device.
        """
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)  # noqa: SLF001  what tells storages apart
        if known is None or _expired(known[0]) or tensor.is_inference():  # inference tensors have no version
            return None
        if known[1] != tensor._version:  # noqa: SLF001  documented, with this name
            return None
        flags = tensor.is_conj(), tensor.is_neg()
        place = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, *flags)
        for kept in known[2]:
            if kept[0] == place:
                return Known(kept[2], 0, whole=True) if kept[1] == content else None
        if content is None or not tensor.nbytes or not tensor.is_contiguous():
            return None
        return _inside(known[2], storage.data_ptr(), tensor)

    def note(self, tensor: torch.Tensor, content: int | None, reference: int) -> None:
        """Remember that `tensor` is kept as `reference` (see `find`)."""
        if tensor.is_inference():
            return
        storage = tensor.untyped_storage()
        identity, version = storage._cdata, tensor._version  # noqa: SLF001  as above
        flags = tensor.is_conj(), tensor.is_neg()
        one_piece = content is not None and tensor.is_contiguous() and not any(flags)
        place = (int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype, *flags)
        kept = (place, content, reference, tensor.nbytes if one_piece else 0)
        known = self._storages.get(identity)
        if known is None:
            self._sweep()
            self._storages[identity] = (_weak(storage), version, (kept,))
        elif _expired(known[0]):
            _free(known[0])
            self._storages[identity] = (_weak(storage), version, (kept,))
        else:
            others = known[2] if known[1] == version else ()
            others = tuple(other for other in others if other[0] != place)[-_MOST:]
            self._storages[identity] = (known[0], version, (*others, kept))

    def _sweep(self) -> None:
        """Let go of those of the oldest storages that are gone.

        At once: what torch keeps of a storage while we refer to it is small, but lies between the model's tensors, and
        keeps the allocator from joining the room that these leave.
        """
        for _ in range(min(_SWEPT, len(self._storages))):
            identity = next(iter(self._storages))
            known = self._storages.pop(identity)
            if _expired(known[0]):
                _free(known[0])
            else:
                self._storages[identity] = known


def _inside(all_kept: tuple[_Kept, ...], base: int, tensor: torch.Tensor) -> Known | None:
    """What is kept that `tensor` lies in, if that costs less to check than to keep `tensor` would."""
    if tensor.is_conj() or tensor.is_neg():
        return None
    start = int(tensor.storage_offset()) * tensor.element_size()
    stop = start + tensor.nbytes
    for (offset, _, _, dtype, _, _), content, reference, nbytes in all_kept:
        first = offset * dtype.itemsize
        if first <= start and stop <= first + nbytes and nbytes <= 8 * tensor.nbytes:
            same = checksum(base + first, nbytes) == content
            return Known(reference, start - first, whole=False) if same else None
    return None
