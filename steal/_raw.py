"""A tensor's bytes in memory, past all that watches torch: modes, autograd, autocast."""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import _python_dispatch

from ._dtypes import CARRIERS, from_carrier

_SMALL, _MEDIUM = 2**14, 2**18
_WEIGHTS = np.random.default_rng(0).integers(-(2**63), 2**63, 4096) | 1  # odd: no bit of a word gets lost


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
    """A number that another content hardly has: of all bytes, and of their order."""
    if nbytes <= _SMALL:
        return hash(ctypes.string_at(address, nbytes))
    words = np.ctypeslib.as_array((ctypes.c_int64 * (nbytes // 8)).from_address(address))
    whole = len(words) // len(_WEIGHTS) * len(_WEIGHTS)
    rows = np.einsum("ij,j->i", words[:whole].reshape(-1, len(_WEIGHTS)), _WEIGHTS)
    # A product keeps the highest bit of a word in its own highest bit alone: two of them, the signs of float64 say,
    # would cancel out. So some words are taken once more, shifted.
    some = words[:: 1 if nbytes <= _MEDIUM else 16] >> 21
    signs = np.einsum("i,i->", some, np.resize(_WEIGHTS, len(some)))
    rest = ctypes.string_at(address + 8 * whole, nbytes - 8 * whole)
    return hash((rows.tobytes(), int(signs), rest))


def row_hashes(tensor: torch.Tensor) -> npt.NDArray[np.int64] | None:
    """A number for each innermost row of a tensor that is `plain`; None if its rows are too long, or no whole words."""
    width, odd = divmod(tensor.shape[-1] * tensor.element_size(), 8)
    if odd or not 0 < width <= len(_WEIGHTS):
        return None
    words = np.frombuffer(bytes_of(tensor), dtype=np.int64).reshape(*tensor.shape[:-1], width)
    low = np.einsum("...i,i->...", words, _WEIGHTS[:width])
    hashes: npt.NDArray[np.int64] = low ^ np.einsum("...i,i->...", words >> 21, _WEIGHTS[-width:])
    return hashes


def tensor_of(raw: torch.Tensor | None, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Bytes (uint8, 1-d; None for an empty tensor) as a tensor of `dtype` and `shape`, sharing memory."""
    carrier = CARRIERS[dtype].view
    dims = (*shape, 2) if dtype.is_complex else tuple(shape)
    # On the CPU by name: the caller may have set another default device.
    bare = torch.empty(dims, dtype=carrier, device="cpu") if raw is None else raw.view(carrier).reshape(dims)
    return from_carrier(bare, dtype)
