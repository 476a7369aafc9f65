"""A tensor's bytes in memory, past all that watches torch: modes, autograd, autocast."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ctypes import memmove, string_at

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import _python_dispatch

from ._dtypes import CARRIERS, from_carrier

_SMALL, _LARGE = 2**14, 2**20
_PIECE = 512  # words
_Words = npt.NDArray[np.int64]
_WORD = np.dtype(np.int64).str
# Whether any mode has a say in what is asked of a tensor, of either kind; torch.device(…) is one, too.
function_mode = torch._C._is_torch_function_mode_enabled  # noqa: SLF001  nothing public tells
dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001  as above
_WEIGHTS = np.random.default_rng(0).integers(-(2**63), 2**63, 4096) | 1  # odd: no bit of a word gets lost


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.words = np.empty(len(_WEIGHTS), np.int64)


class _Place:
    """Some memory, as numpy asks for it; a ctypes array would need a class for each length, which stays for long."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, count: int, kind: str) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (count,), "typestr": kind, "version": 3}


class _Threads:
    started = False  # by us, maybe


_scratch = _Scratch()


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
    return np.asarray(_Place(tensor.data_ptr(), tensor.nbytes, "|u1")).data if tensor.nbytes else memoryview(b"")


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy memory; much of it by all the threads that torch has, as the model waits meanwhile.

    Like `checksum`, it is called where no mode of the user's looks.
    """
    if nbytes < _LARGE:
        memmove(target, source, nbytes)
        return
    with _by_torch():
        to, what = (torch.from_numpy(np.asarray(_Place(place, nbytes, "|u1"))) for place in (target, source))
        to.copy_(what)


def checksum(address: int, nbytes: int) -> int:
    """A number that another content hardly has.

    Up to 1 MiB, it is over all bytes and their order. Of more, it is over all bytes, the order of pieces of 4 KiB, and
    that of 4,096 words among them, at the speed of memory: what it can't see is a few numbers within such a piece that
    change places, or their signs in pairs.
    """
    if nbytes <= _SMALL:
        return hash(string_at(address, nbytes))
    words = np.asarray(_Place(address, nbytes // 8, _WORD))
    rest = string_at(address + 8 * len(words), nbytes % 8)
    # The step is odd, so that of pairs (complex numbers, say) both are seen.
    sample = _ordered(words[:: -(-len(words) // len(_WEIGHTS)) | 1])
    if nbytes <= _LARGE:
        rows, tail = _pieces(words, len(_WEIGHTS))
        return hash((np.einsum("ij,j->i", rows, _WEIGHTS).tobytes(), _ordered(tail), sample, rest))
    rows, tail = _pieces(words, _PIECE)
    with _by_torch():
        sums = torch.from_numpy(rows).sum(1).numpy()
    return hash((sums.tobytes(), _ordered(tail), sample, rest))


@contextmanager
def _by_torch() -> Iterator[None]:
    """Inside, torch's threads work on bare memory, whatever transformation of torch.func the model is in."""
    _Threads.started = True
    with torch._C._DisableFuncTorch():  # noqa: SLF001  nothing public does
        yield


def stay_alone() -> None:
    """In a forked process: the threads that torch started for us are not there, and it would wait for them."""
    if _Threads.started:
        torch.set_num_threads(1)


def _pieces(words: _Words, length: int) -> tuple[_Words, _Words]:
    whole = len(words) // length * length
    return words[:whole].reshape(-1, length), words[whole:]


def _ordered(words: _Words) -> tuple[int, int]:
    """Two numbers for some words and their order.

    A product keeps the highest bit of a word in its own highest bit alone, where two of them, the signs of float64 say,
    cancel out: so all are taken once more, shifted.
    """
    if not len(words):
        return 0, 0
    weights = _WEIGHTS[: len(words)]
    shifted = np.right_shift(words, 21, out=_scratch.words[: len(words)])
    return int(np.einsum("i,i->", words, weights)), int(np.einsum("i,i->", shifted, weights))


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
