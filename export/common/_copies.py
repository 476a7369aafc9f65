"""Copy tensors together with how they share memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from filch.steal.private._torch import neg_view, pytree

_ALIGNMENT = 64  # bytes; generated code may require that of an input
_SMALL = 1 << 20  # bytes
_RATIO = 4


def copy_tensors(values: Any, device: torch.device | None = None) -> Any:
    """Return nested values with copies of their tensors, which have the same strides and share memory in the same way.

    Copies of views are views, too, as a compiler may join arguments that are views of one tensor to that tensor. The
    memory around them is copied, too, as `as_strided` may read it. If that is more than 1 MiB and four times what
    they use, as for a batch of a data set, only what they use is copied. A tensor without plain memory, such as a
    sparse one, is cloned.

    Args:
        values: any nesting of tensors and other values.
        device: the device of the copies; None is that of each tensor.
    """
    tensors = [item for item in pytree.tree_leaves(values) if isinstance(item, torch.Tensor)]
    spans = _copied_spans([tensor for tensor in tensors if has_plain_memory(tensor)], device)
    copies: dict[int, torch.Tensor] = {}  # also of what tensors are views of, by identity

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of a tensor, which is a view if the tensor is one."""
        if not has_plain_memory(tensor):
            return tensor.detach().to(device, copy=True)
        storage, begin = spans[_address(tensor)]
        base = tensor._base  # noqa: SLF001  there is no public name
        if base is None or begin or storage.nbytes() < _span(base)[1] or not _is_plain_view(tensor, base):
            return copies.setdefault(id(tensor), _part(tensor.detach(), storage, begin))
        whole = copies.setdefault(id(base), _part(base.detach(), storage, begin))
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    made = pytree.tree_map_only(torch.Tensor, copied, values)
    for tensor, copy in zip(tensors, filter(torch.is_tensor, pytree.tree_leaves(made)), strict=True):
        copy.requires_grad_(tensor.requires_grad)
    return made


def _is_plain_view(tensor: torch.Tensor, base: torch.Tensor) -> bool:
    """Return whether `as_strided` of a tensor gives a view of it, and takes no part in gradients."""
    bits = (item.is_conj() or item.is_neg() for item in (tensor, base))
    return has_plain_memory(base) and tensor.dtype == base.dtype and not base.requires_grad and not any(bits)


def _copied_spans(
    tensors: Sequence[torch.Tensor], device: torch.device | None
) -> Mapping[int, tuple[torch.UntypedStorage, int]]:
    """Copy the used part of the memory of tensors, each memory once.

    Args:
        tensors: tensors with plain memory.
        device: see `copy_tensors`.

    Returns:
        the copy, and the byte of the memory at which it begins, by the address of the memory.
    """
    used: dict[int, tuple[torch.UntypedStorage, int, int]] = {}  # the memory and its used bytes, by its address
    for tensor in tensors:
        storage, start, end = used.get(_address(tensor), (tensor.untyped_storage(), *_span(tensor)))
        first, last = _span(tensor)
        used[_address(tensor)] = storage, min(start, first), max(end, last)
    copied = {}
    for address, (storage, start, end) in used.items():
        if storage.nbytes() <= max(_SMALL, _RATIO * (end - start)):
            start, end = 0, storage.nbytes()  # noqa: PLW2901  all of it
        begin = start // _ALIGNMENT * _ALIGNMENT
        part = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, begin, (end - begin,), (1,))
        copied[address] = part.to(device, copy=True).untyped_storage(), begin
    return copied


def _part(source: torch.Tensor, storage: torch.UntypedStorage, begin: int) -> torch.Tensor:
    """Return the tensor in a copied memory that corresponds to `source`; the copy begins at byte `begin`."""
    size = source.element_size()
    offset = source.storage_offset() - begin // size
    part = torch.empty(0, dtype=source.dtype, device=storage.device)
    part.set_(storage, offset, source.shape, source.stride())
    part = part.conj() if source.is_conj() else part
    return neg_view(part) if source.is_neg() else part  # there is no other way to set this bit


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its memory and the one after its last."""
    start = int(tensor.storage_offset())
    last = sum(int(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start * tensor.element_size(), (start + (last + 1 if tensor.numel() else 0)) * tensor.element_size()


def _address(tensor: torch.Tensor) -> int:
    """Return what identifies the memory of a tensor."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  data_ptr is 0 for all empty ones


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is numbers in strided memory and nothing else: no subclass, not sparse, not quantized."""
    is_tensor = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_tensor and tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
