"""Variants of recording the inputs and outputs of all modules: none, lower bounds, other tools, Filch."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from _measure import MIB
from _runs import Forward, Variant, plain_forward
from torch import nn

from filch.steal import steal_forward

BUFFER = 256 * MIB
BLOCK = 4 * MIB


@contextmanager
def hooked(model: nn.Module, before: Callable[[str], Any], after: Callable[[str], Any]) -> Iterator[Forward]:
    """Register on each module the hooks that `before` and `after` return for its name."""
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
        handles.append(module.register_forward_hook(after(name), with_kwargs=True, always_call=True))
    try:
        yield model
    finally:
        for handle in handles:
            handle.remove()


def empty_hooks(model: nn.Module, folder: Path) -> AbstractContextManager[Forward]:  # noqa: ARG001
    """Call hooks that do nothing: the overhead of torch itself."""

    def empty_hook(*_: object) -> None:
        pass

    return hooked(model, lambda _: empty_hook, lambda _: empty_hook)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


@contextmanager
def clone_tensors(
    model: nn.Module, folder: Path, save: Callable[[dict[str, torch.Tensor], Path], None]
) -> Iterator[Forward]:
    """Clone all tensors in hooks, the simplest solution, and write them with `save` at the end."""
    tensors: dict[str, torch.Tensor] = {}

    def record(key: str, value: Any) -> None:
        for tensor in tensors_in(value):
            # safetensors accepts only contiguous tensors.
            tensors[f"{key}.{len(tensors)}"] = tensor.clone(memory_format=torch.contiguous_format)

    def before(name: str) -> Any:
        return lambda _, args, kwargs: record(f"{name}.I", (args, kwargs))

    def after(name: str) -> Any:
        return lambda _, args, kwargs, output: record(f"{name}.O", output)  # noqa: ARG005

    with hooked(model, before, after) as forward:
        yield forward
    save(tensors, folder / "saved")


class BlockWriter:
    """A file that is written through the page cache by the caller, or with O_DIRECT by a thread of its own."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        self._file = os.open(path, flags | os.O_DIRECT if direct else flags)
        self._free: SimpleQueue[torch.Tensor] = SimpleQueue()
        self._full: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        self._allocated = self._filled = self._size = 0
        self._block = self._next_block() if direct else None
        self._thread = threading.Thread(target=self._write_blocks)
        self._thread.start()

    def put(self, tensor: torch.Tensor) -> None:
        """Write, or copy for writing, the current bytes of a tensor."""
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        self._size += flat.numel()
        if self._block is None:
            os.write(self._file, flat.numpy().data)
            return
        while flat.numel():
            size = min(BLOCK - self._filled, flat.numel())
            self._block[self._filled : self._filled + size].copy_(flat[:size])
            flat, self._filled = flat[size:], self._filled + size
            if self._filled == BLOCK:
                self._full.put(self._block)
                self._block, self._filled = self._next_block(), 0

    def close(self) -> None:
        """Write the remaining bytes and close the file."""
        self._full.put(self._block)
        self._full.put(None)
        self._thread.join()
        os.ftruncate(self._file, self._size)
        os.close(self._file)

    def _next_block(self) -> torch.Tensor:
        if self._free.empty() and self._allocated < BUFFER // BLOCK:
            self._allocated += 1
            return torch.frombuffer(mmap.mmap(-1, BLOCK), dtype=torch.uint8)
        return self._free.get()

    def _write_blocks(self) -> None:
        while (block := self._full.get()) is not None:
            os.write(self._file, block.numpy().data)
            self._free.put(block)


@contextmanager
def bare_capture(model: nn.Module, folder: Path, *, direct: bool) -> Iterator[Forward]:
    """Write the bytes of each new tensor, the minimum that any capture has to do.

    It stores neither names nor positions, does not detect changes that bypass torch's version counter, and its file
    cannot be read back.
    """
    stored: dict[int, tuple[int, weakref.ref[Any]]] = {}
    file = BlockWriter(folder / "bytes", direct=direct)

    def record(value: Any) -> None:
        for tensor in tensors_in(value):
            storage, version = tensor.untyped_storage(), tensor._version  # noqa: SLF001  documented, with this name
            before, alive = stored.get(storage._cdata, (None, None))  # noqa: SLF001  identifies a storage
            if alive is None or alive() is None or before != version:
                stored[storage._cdata] = version, weakref.ref(storage)  # noqa: SLF001
                file.put(tensor)

    with hooked(
        model, lambda _: lambda _, args, kwargs: record((args, kwargs)), lambda _: lambda *_: record(_[-1])
    ) as forward:
        yield forward
    file.close()


def discard(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write no file."""


def save_safetensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write one safetensors file."""
    from safetensors.torch import save_file

    save_file(tensors, path)


@contextmanager
def onnx_diagnostic(model: nn.Module, folder: Path) -> Iterator[Forward]:
    """Use its `steal_forward` without its limit of 128 MiB per tensor, and without output."""
    from onnx_diagnostic.helpers.torch_helper import steal_forward as steal

    dump = str(folder / "dump.onnx")
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            steal(model, fprint=lambda *_, **__: "", submodules=True, dump_file=dump, storage_limit=2**62),
        ):
            yield model
    finally:
        for module in model.modules():  # it leaves a bound method in each module
            module.__dict__.pop("forward", None)


@contextmanager
def torchlens(model: nn.Module, folder: Path, *, disk: bool = True) -> Iterator[Forward]:
    """Use its trace of every operation, streamed to disk (`tl.to_disk`) or kept in memory."""
    import torchlens as tl
    from torchlens.options import CaptureOptions

    tensors = []

    def forward(x: torch.Tensor) -> None:
        storage = {"storage": tl.to_disk(folder / f"{len(tensors)}.tlspec")} if disk else {}
        # Otherwise torch stays wrapped, which slows the next variants down.
        tensors.append(tl.trace(model, (x,), capture=CaptureOptions(unwrap_when_done=True), **storage))

    with warnings.catch_warnings(action="ignore"):
        yield forward


@contextmanager
def filch(model: nn.Module, folder: Path, *, disk: bool = True, **options: Any) -> Iterator[Forward]:
    """Use Filch."""
    with steal_forward(model, submodules=True, dump_file=folder / "dump.onnx" if disk else None, **options):
        yield model


@contextmanager
def filch_layers(model: nn.Module, folder: Path, **options: Any) -> Iterator[Forward]:
    """Use Filch on the decoder layers only."""
    with steal_forward(list(model.layers.named_children()), dump_file=folder / "dump.onnx", **options):
        yield model


VARIANTS: dict[str, Variant] = {
    "plain": plain_forward,
    "empty hooks": empty_hooks,
    "bare, page cache": partial(bare_capture, direct=False),
    "bare, direct I/O": partial(bare_capture, direct=True),
    "clone": partial(clone_tensors, save=discard),
    "clone, torch.save": partial(clone_tensors, save=torch.save),
    "clone, safetensors": partial(clone_tensors, save=save_safetensors),
    "onnx-diagnostic": onnx_diagnostic,
    "torchlens in memory": partial(torchlens, disk=False),
    "torchlens": torchlens,
    "Filch in memory": partial(filch, disk=False),
    "Filch": filch,
    "Filch, 256 MiB buffer": partial(filch, buffer=BUFFER),
}
