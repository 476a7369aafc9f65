"""Read and hash a tensor's memory without being seen by modes, autograd or autocast."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import c_char, memmove, string_at
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..private._torch import (
    DisableFuncTorch,
    DisableTorchFunction,
    disable_current_modes,
    is_torch_function_mode_enabled,
    len_torch_dispatch_stack,
    len_torch_dispatch_stack_pre_dispatch,
)
from ._dtypes import CARRIERS, from_carrier

SMALL, _LARGE = 2**14, 2**20  # bytes up to which Python's hash is used, and above which torch's threads are
_BLOCK = 512  # words
_Words = npt.NDArray[np.int64]
_WORD = np.dtype(np.int64).str
_WEIGHTS = np.random.default_rng(0).integers(-(2**63), 2**63, 4096) | 1  # odd: multiplication keeps all bits


class _HashBuffer(threading.local):
    """The buffer of `_order_hashes`, one per thread."""

    def __init__(self) -> None:
        self.words = np.empty(len(_WEIGHTS), np.int64)


class _ArrayMemory:
    """Memory as NumPy's array interface; ctypes would create and cache an array class for each length."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, count: int, typestr: str) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (count,), "typestr": typestr, "version": 3}


class _TorchThreads:
    """Whether this module may have started torch's threads."""

    started = False


_scratch = _HashBuffer()
_at: Callable[[int], Any] = (c_char * SMALL).from_address


def is_mode_active() -> bool:
    """Return whether a function mode, such as `with torch.device(…)`, or a dispatch mode is active in this thread."""
    return is_torch_function_mode_enabled() or len_torch_dispatch_stack() > 0


def no_modes() -> ExitStack:
    """Return a context without dispatch modes, function modes and `__torch_function__` of subclasses."""
    stack = ExitStack()
    stack.enter_context(DisableTorchFunction())
    # Torch's context takes long even where there is no mode, as in nearly every hook.
    if len_torch_dispatch_stack() or len_torch_dispatch_stack_pre_dispatch():  # type: ignore[no-untyped-call]
        stack.enter_context(disable_current_modes())
    return stack


@contextmanager
def no_modes_or_grad() -> Iterator[None]:
    """Disable modes, autograd and inference mode inside the block."""
    # Tensors created in inference mode can't be used by a model that trains.
    with no_modes(), torch.inference_mode(mode=False), torch.no_grad():
        yield


def contiguous_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous CPU tensor without lazy conjugate or negative: the tensor itself if it is one, else a copy.

    Args:
        tensor: a storable one (see `is_storable`), on any device.
    """
    if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    with no_modes_or_grad():
        return tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a tensor that `contiguous_cpu` returned; valid while the tensor lives."""
    return np.asarray(_ArrayMemory(tensor.data_ptr(), tensor.nbytes, "|u1")).data if tensor.nbytes else memoryview(b"")


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy memory, large blocks with torch's threads; the model waits meanwhile.

    Like `checksum`, this must be called without active modes.
    """
    if nbytes < _LARGE:
        memmove(target, source, nbytes)
        return
    with _torch_threads():
        to, from_ = (torch.from_numpy(np.asarray(_ArrayMemory(place, nbytes, "|u1"))) for place in (target, source))
        to.copy_(from_)


def small_bytes(address: int, nbytes: int) -> bytes:
    """Return a copy of at most `SMALL` bytes of memory; its `hash` is their `checksum`."""
    data: bytes = _at(address)[:nbytes]  # in a third of the time of ctypes.string_at
    return data


def checksum(address: int, nbytes: int) -> int:
    """Return a hash of memory that detects nearly all changes.

    Up to 1 MiB, the hash covers all bytes and their order. Above, it covers all bytes, the order of 4 KiB blocks, and
    the order of 4,096 sampled words, at memory speed: it can miss a few numbers of one block that change places, or
    pairs of changed signs.
    """
    if nbytes <= SMALL:
        return hash(small_bytes(address, nbytes))
    words = np.asarray(_ArrayMemory(address, nbytes // 8, _WORD))
    rest = string_at(address + 8 * len(words), nbytes % 8)
    # The step is odd, so that of pairs, such as complex numbers, both members are sampled.
    sample = _order_hashes(words[:: -(-len(words) // len(_WEIGHTS)) | 1])
    if nbytes <= _LARGE:
        rows, tail = _split_rows(words, len(_WEIGHTS))
        return hash((np.einsum("ij,j->i", rows, _WEIGHTS).tobytes(), _order_hashes(tail), sample, rest))
    rows, tail = _split_rows(words, _BLOCK)
    with _torch_threads():
        sums = torch.from_numpy(rows).sum(1).numpy()
    return hash((sums.tobytes(), _order_hashes(tail), sample, rest))


@contextmanager
def _torch_threads() -> Iterator[None]:
    """Allow torch's threads to work on raw memory, even inside a torch.func transformation."""
    _TorchThreads.started = True
    with DisableFuncTorch():
        yield


def use_one_thread_after_fork() -> None:
    """In a forked process, stop torch from waiting for threads that exist only in the parent."""
    if _TorchThreads.started:
        torch.set_num_threads(1)


def _split_rows(words: _Words, length: int) -> tuple[_Words, _Words]:
    """Return as many whole rows of `length` words as there are, and the rest."""
    whole = len(words) // length * length
    return words[:whole].reshape(-1, length), words[whole:]


def _order_hashes(words: _Words) -> tuple[int, int]:
    """Return two hashes of words that depend on their order.

    In a product, the highest bit of a word affects only the highest bit of the result, where two changes (such as
    signs of float64) cancel out. So the second hash uses shifted words.
    """
    if not len(words):
        return 0, 0
    weights = _WEIGHTS[: len(words)]
    shifted = np.right_shift(words, 21, out=_scratch.words[: len(words)])
    return int(np.einsum("i,i->", words, weights)), int(np.einsum("i,i->", shifted, weights))


def row_hashes(tensor: torch.Tensor) -> npt.NDArray[np.int64] | None:
    """Return a hash of each innermost row of a contiguous CPU tensor; None if they are too long or not whole words."""
    width, rest = divmod(tensor.shape[-1] * tensor.element_size(), 8)
    if rest or not 0 < width <= len(_WEIGHTS):
        return None
    words = np.frombuffer(bytes_of(tensor), dtype=np.int64).reshape(*tensor.shape[:-1], width)
    low = np.einsum("...i,i->...", words, _WEIGHTS[:width])
    hashes: npt.NDArray[np.int64] = low ^ np.einsum("...i,i->...", words >> 21, _WEIGHTS[-width:])
    return hashes


def tensor_from_bytes(raw: torch.Tensor | None, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Return a view of bytes (1-d uint8; None for an empty tensor) as a tensor of `dtype` and `shape`."""
    carrier = CARRIERS[dtype].view
    dims = (*shape, 2) if dtype.is_complex else tuple(shape)
    # device="cpu": the caller may have set another default device.
    stored = torch.empty(dims, dtype=carrier, device="cpu") if raw is None else raw.view(carrier).reshape(dims)
    return from_carrier(stored, dtype)
