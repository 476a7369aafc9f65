"""A tensor's bytes in memory, past all that watches torch: modes, autograd, autocast."""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch.utils import _python_dispatch

from ._dtypes import CARRIERS, from_carrier

_SMALL, _MEDIUM = 2**12, 2**16


def no_modes() -> ExitStack:
    """A context in which tensors are what they are: no mode and no subclass has a say."""
    stack = ExitStack()
    stack.enter_context(torch._C.DisableTorchFunction())  # noqa: SLF001  nothing public does
    stack.enter_context(_python_dispatch._disable_current_modes())  # noqa: SLF001  as above
    return stack


@contextmanager
def untouched() -> Iterator[None]:
    """Inside, what we ask of torch is neither recorded, counted nor changed by what the user has switched on."""
    # What is made in inference mode could not be given to a model that trains.
    with no_modes(), torch.inference_mode(mode=False), torch.no_grad():
        yield


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its bytes lie in main memory as they read, else a copy for which they do.

    Args:
        tensor: one for which `not_storable` is None, on any device.
    """
    if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    with untouched():
        return tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a tensor that is `plain`, for as long as it lives."""
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def checksum(address: int, nbytes: int) -> int:
    """A number that another content hardly has.

    Of more than 64 KiB, it is over one word in each 512 bytes: it tells of every change of that length, and costs next
    to nothing.
    """
    if nbytes <= _SMALL:
        return hash(ctypes.string_at(address, nbytes))
    words = np.ctypeslib.as_array((ctypes.c_int64 * (nbytes // 8)).from_address(address))
    rest = ctypes.string_at(address + nbytes // 8 * 8, nbytes % 8)
    return hash((int(np.add.reduce(words if nbytes <= _MEDIUM else words[::64])), rest))


def tensor_of(raw: torch.Tensor | None, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Bytes (uint8, 1-d; None for an empty tensor) as a tensor of `dtype` and `shape`, sharing memory."""
    carrier = CARRIERS[dtype].view
    dims = (*shape, 2) if dtype.is_complex else tuple(shape)
    # On the CPU by name: the caller may have set another default device.
    bare = torch.empty(dims, dtype=carrier, device="cpu") if raw is None else raw.view(carrier).reshape(dims)
    return from_carrier(bare, dtype)
