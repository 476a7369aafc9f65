"""Knows again a tensor whose numbers were taken before, so that one tensor is kept once."""

from typing import Any

import torch

from ._raw import checksum

# A weak reference to a storage, as torch counts them: it keeps the storage's address from being used anew, no more.
_expired: Any = torch.UntypedStorage._expired  # noqa: SLF001  what torch.multiprocessing follows storages by
_weak: Any = torch.UntypedStorage._weak_ref  # noqa: SLF001  likewise
_free: Any = torch.UntypedStorage._free_weak_ref  # noqa: SLF001  likewise

# Tuples of plain things all the way down: Python's garbage collector looks at them once, and they are many.
_Place = tuple[Any, tuple[int, ...], tuple[int, ...], torch.dtype, bool, bool]
_Kept = tuple[_Place, int | None, int, int]  # where, the checksum, the reference, the bytes if they are in one piece
_Storage = tuple[int, int, tuple[_Kept, ...]]  # the weak reference, the version and what is kept of it
Asked = tuple[torch.UntypedStorage, int, int, _Place]  # the storage, what tells it apart, the version, where in it
Known = tuple[int, int | None]  # the reference of what is kept, and where in it the wanted bytes begin; None: it is all

_MOST = 8  # views of one storage that are remembered
_SWEPT = 2  # more than come at a time, so that those that are gone get fewer


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

    @staticmethod
    def ask(tensor: torch.Tensor, flags: tuple[bool, bool]) -> Asked | None:
        """What to ask `find` for; None for a tensor that has no version, as it was made in inference mode.

        Args:
            tensor: any strided tensor.
            flags: whether it is a lazy conjugate, and a lazy negative.
        """
        if tensor.is_inference():
            return None
        storage = tensor.untyped_storage()
        place = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, *flags)
        return storage, storage._cdata, tensor._version, place  # noqa: SLF001  what tells storages apart; documented

    def find(self, asked: Asked, content: int | None, nbytes: int) -> Known | None:
        """Where a tensor is kept, or None if it isn't, was changed, or can't be followed.

        Args:
            asked: see `ask`.
            content: the `checksum` of its bytes; None on a device.
            nbytes: how many these are, if they lie in one piece; else 0.
        """
        storage, identity, version, place = asked
        known = self._storages.get(identity)
        if known is None or known[1] != version or _expired(known[0]):
            return None
        for kept in known[2]:
            if kept[0] == place:
                return (kept[2], None) if kept[1] == content else None
        if content is None or not nbytes:
            return None
        start = place[0] * place[3].itemsize
        return _inside(known[2], storage, start, nbytes)

    def note(self, asked: Asked, content: int | None, nbytes: int, reference: int) -> None:
        """Remember that a tensor is kept as `reference` (see `find`)."""
        storage, identity, version, place = asked
        kept = (place, content, reference, 0 if content is None else nbytes)
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


def _inside(all_kept: tuple[_Kept, ...], storage: torch.UntypedStorage, start: int, nbytes: int) -> Known | None:
    """What is kept that these bytes lie in, if that costs less to check than to keep them would."""
    for (offset, _, _, dtype, _, _), content, reference, size in all_kept:
        first = offset * dtype.itemsize
        if first <= start and start + nbytes <= first + size <= storage.nbytes() and size <= 8 * nbytes:
            same = checksum(storage.data_ptr() + first, size) == content
            return (reference, start - first) if same else None
    return None
