"""The ways to steal what a model's modules take and give: none, the barest, those of peers, Filch's."""

from __future__ import annotations

import contextlib
import inspect
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
from _runs import Forward, Variant, plain
from torch import nn

from filch.steal import steal_forward

BUFFER = 256 * MIB
BLOCK = 4 * MIB


@contextmanager
def hooked(model: nn.Module, before: Callable[[str], Any], after: Callable[[str], Any]) -> Iterator[Forward]:
    """Let all modules have the hooks that `before` and `after` make for their names."""
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
    """What torch takes to call hooks that do nothing."""

    def nothing(*_: object) -> None:
        pass

    return hooked(model, lambda _: nothing, lambda _: nothing)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a nesting of tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


@contextmanager
def clones(model: nn.Module, folder: Path, save: Callable[[dict[str, torch.Tensor], Path], None]) -> Iterator[Forward]:
    """What everybody writes first: hooks that clone into memory; then `save` makes a file of it."""
    kept: dict[str, torch.Tensor] = {}

    def keep(key: str, value: Any) -> None:
        for tensor in tensors_in(value):
            # Not as it lies: safetensors takes contiguous ones alone.
            kept[f"{key}.{len(kept)}"] = tensor.clone(memory_format=torch.contiguous_format)

    def before(name: str) -> Any:
        return lambda _, args, kwargs: keep(f"{name}.I", (args, kwargs))

    def after(name: str) -> Any:
        return lambda _, args, kwargs, output: keep(f"{name}.O", output)  # noqa: ARG005

    with hooked(model, before, after) as forward:
        yield forward
    save(kept, folder / "saved")


class Bytes:
    """A file that takes bytes in from the model's thread, by the page cache or past it from a thread of its own."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        self._file = os.open(path, flags | os.O_DIRECT if direct else flags)
        self._free: SimpleQueue[torch.Tensor] = SimpleQueue()
        self._full: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        self._made = self._filled = self._size = 0
        self._block = self._next() if direct else None
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def put(self, tensor: torch.Tensor) -> None:
        """Take a tensor's bytes as they are now."""
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
                self._block, self._filled = self._next(), 0

    def close(self) -> None:
        """Write the rest."""
        self._full.put(self._block)
        self._full.put(None)
        self._thread.join()
        os.ftruncate(self._file, self._size)
        os.close(self._file)

    def _next(self) -> torch.Tensor:
        if self._free.empty() and self._made < BUFFER // BLOCK:
            self._made += 1
            return torch.frombuffer(mmap.mmap(-1, BLOCK), dtype=torch.uint8)
        return self._free.get()

    def _write(self) -> None:
        while (block := self._full.get()) is not None:
            os.write(self._file, block.numpy().data)
            self._free.put(block)


@contextmanager
def bare(model: nn.Module, folder: Path, *, direct: bool) -> Iterator[Forward]:
    """The least that any capture has to do: write the bytes of each tensor that is new, as they are now.

    No names, no places, no look at what was changed past torch's version counter, nothing to read them back with.
    """
    seen: dict[int, tuple[int, weakref.ref[Any]]] = {}
    file = Bytes(folder / "bytes", direct=direct)

    def keep(value: Any) -> None:
        for tensor in tensors_in(value):
            storage, version = tensor.untyped_storage(), tensor._version  # noqa: SLF001  documented, with this name
            before, alive = seen.get(storage._cdata, (None, None))  # noqa: SLF001  what tells storages apart
            if alive is None or alive() is None or before != version:
                seen[storage._cdata] = version, weakref.ref(storage)  # noqa: SLF001
                file.put(tensor)

    with hooked(
        model, lambda _: lambda _, args, kwargs: keep((args, kwargs)), lambda _: lambda *_: keep(_[-1])
    ) as forward:
        yield forward
    file.close()


def keep_in_memory(kept: dict[str, torch.Tensor], path: Path) -> None:
    """No file."""


def by_safetensors(kept: dict[str, torch.Tensor], path: Path) -> None:
    """One file of safetensors."""
    from safetensors.torch import save_file

    save_file(kept, path)


@contextmanager
def onnx_diagnostic(model: nn.Module, folder: Path) -> Iterator[Forward]:
    """Its steal_forward, without its limit of 128 MiB a tensor, and with nothing to print."""
    from onnx_diagnostic.helpers.torch_helper import steal_forward as steal

    dump = str(folder / "dump.onnx")
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            steal(model, fprint=lambda *_, **__: "", submodules=True, dump_file=dump, storage_limit=2**62),
        ):
            yield model
    finally:
        for module in model.modules():  # it leaves the bound method in each
            module.__dict__.pop("forward", None)


@contextmanager
def torchlens(model: nn.Module, folder: Path, *, disk: bool = True) -> Iterator[Forward]:
    """Its trace of every operation, streamed to its bundles (`tl.to_disk`) or kept in memory."""
    import torchlens as tl
    from torchlens.options import CaptureOptions

    kept = []

    def forward(x: torch.Tensor) -> None:
        storage = {"storage": tl.to_disk(folder / f"{len(kept)}.tlspec")} if disk else {}
        # Unwrapped, or all of torch would be slower for who comes next.
        kept.append(tl.trace(model, (x,), capture=CaptureOptions(unwrap_when_done=True), **storage))

    with warnings.catch_warnings(action="ignore"):
        yield forward


@contextmanager
def filch(model: nn.Module, folder: Path, *, disk: bool = True, **options: Any) -> Iterator[Forward]:
    """Filch."""
    with steal_forward(model, submodules=True, dump_file=folder / "dump.onnx" if disk else None, **known(options)):
        yield model


@contextmanager
def filch_layers(model: nn.Module, folder: Path, **options: Any) -> Iterator[Forward]:
    """Filch on the decoder layers alone."""
    with steal_forward(list(model.layers.named_children()), dump_file=folder / "dump.onnx", **known(options)):
        yield model


def known(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that this Filch has: one from before streaming has no buffer."""
    return {name: value for name, value in options.items() if name in inspect.signature(steal_forward).parameters}


VARIANTS: dict[str, Variant] = {
    "plain": plain,
    "empty hooks": empty_hooks,
    "bare, page cache": partial(bare, direct=False),
    "bare, past it": partial(bare, direct=True),
    "clone": partial(clones, save=keep_in_memory),
    "clone, torch.save": partial(clones, save=torch.save),
    "clone, safetensors": partial(clones, save=by_safetensors),
    "onnx-diagnostic": onnx_diagnostic,
    "torchlens in memory": partial(torchlens, disk=False),
    "torchlens": torchlens,
    "Filch in memory": partial(filch, disk=False),
    "Filch": filch,
    "Filch, 256 MiB buffer": partial(filch, buffer=BUFFER),
}
