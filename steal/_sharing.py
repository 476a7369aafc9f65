"""Knows again a tensor whose numbers were taken before, so that one tensor is kept once."""

from typing import Any, NamedTuple

import torch

from ._raw import checksum

_Span = tuple[int, int, int | None, int]
_expired = torch.UntypedStorage._expired  # noqa: SLF001  see `_Storage`


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


class _Storage:
    """What is kept of one storage, as of one version of it.

    Attributes:
        alive: a weak reference, as torch counts them: it keeps the storage's address from being used anew, no more.
        version: the version.
        places: the references, with the checksums, by place.
        spans: the first and last byte, checksum and reference of those that are contiguous.
    """

    __slots__ = ("alive", "places", "spans", "version")

    places: dict[Any, tuple[int, int | None]]
    spans: list[_Span]

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.alive = storage._weak_ref()  # noqa: SLF001  what torch.multiprocessing follows storages by
        self.version = -1

    def __del__(self) -> None:
        torch.UntypedStorage._free_weak_ref(self.alive)  # type: ignore[no-untyped-call]  # noqa: SLF001  as above


class Sharing:
    """The tensors that are kept, by storage, version, offset, shape, strides and dtype.

    The version counter does not see all that changes a tensor: `.data`, numpy and hand-written kernels go past it. So
    a sum over the bytes has to be the same as well, where they can be read at once, in main memory.
    """

    # It runs in every hook: no call is made that can be spared.

    def __init__(self) -> None:
        self._storages: dict[int, _Storage] = {}
        self._room = 1024

    def find(self, tensor: torch.Tensor, content: int | None) -> Known | None:
        """Where `tensor` is kept, or None if it isn't, was changed, or can't be followed.

        Args:
            tensor: any strided tensor.
            content: the `checksum` of its bytes; None on a device.
        """
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)  # noqa: SLF001  what tells storages apart
        if known is None or _expired(known.alive) or tensor.is_inference():  # inference tensors have no version
            return None
        if known.version != tensor._version:  # noqa: SLF001  documented, with this name
            return None
        found = known.places.get((tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype))
        if found is not None:
            return Known(found[0], 0, whole=True) if found[1] == content else None
        if content is None or not tensor.nbytes or not tensor.is_contiguous():
            return None
        return _inside(known.spans, storage.data_ptr(), tensor)

    def note(self, tensor: torch.Tensor, content: int | None, reference: int) -> None:
        """Remember that `tensor` is kept as `reference` (see `find`)."""
        if tensor.is_inference():
            return
        storage = tensor.untyped_storage()
        version, identity, start = tensor._version, storage._cdata, int(tensor.storage_offset())  # noqa: SLF001  as above
        known = self._storages.get(identity)
        if known is None or _expired(known.alive):
            if len(self._storages) >= self._room:
                self._storages = {key: item for key, item in self._storages.items() if not _expired(item.alive)}
                self._room = max(1024, 2 * len(self._storages))
            known = self._storages[identity] = _Storage(storage)
        if known.version != version:
            known.version, known.places, known.spans = version, {}, []
        known.places[start, tensor.shape, tensor.stride(), tensor.dtype] = (reference, content)
        if content is not None and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            start *= tensor.element_size()
            known.spans.append((start, start + tensor.nbytes, content, reference))


def _inside(spans: list[_Span], base: int, tensor: torch.Tensor) -> Known | None:
    """The kept span that `tensor` lies in, if that costs less to check than to keep `tensor` would."""
    if tensor.is_conj() or tensor.is_neg():
        return None
    start = int(tensor.storage_offset()) * tensor.element_size()
    stop = start + tensor.nbytes
    for first, last, content, reference in spans:
        if first <= start and stop <= last and last - first <= 8 * tensor.nbytes:
            same = checksum(base + first, last - first) == content
            return Known(reference, start - first, whole=False) if same else None
    return None
