"""The context manager that steals what modules take and give while a model runs."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ._dtypes import not_storable
from ._dump import restore
from ._errors import FilchError
from ._key import Key, Kind
from ._narrate import Narrator
from ._records import ModuleInfo, Origin, Record, Records
from ._selection import Modules, select
from ._store import MemoryStore, Store
from ._structure import Spec, encode, skipped
from ._writer import DumpWriter

_active: ContextVar[tuple["_Recorder", ...]] = ContextVar("filch_active", default=())


class Capture(Records):
    """What one `steal_forward` block took; usable inside the block too.

    Attributes:
        dump_file: where it is written, or None.
    """

    dump_file: str | None = None


@contextmanager
def steal_forward(
    modules: Modules,
    *,
    dump_file: str | os.PathLike[str] | None = None,
    submodules: bool = False,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    storage_limit: int | None = None,
    verbose: int = 0,
) -> Iterator[Capture]:
    """Steal what modules take and give while the block runs.

    Each call of a module gives two records: `(name, iteration, "I")`, its `(args, kwargs)`, and `(name, iteration,
    "O")`, its output, both as they were at that moment. The model computes what it computes without: only hooks are
    used, and none is left behind.

    Args:
        modules: a module, a `(name, module)` pair, or a list of either.
        dump_file: write everything to this ONNX file (see `restore`); without it the capture lives in memory.
        submodules: take all modules below the given ones too, under `name.path`.
        include: take the submodules whose names match one of these patterns (`"decoder.layers.*.mlp"`; `**` crosses
            dots).
        exclude: leave out the submodules whose names match one of these patterns.
        storage_limit: leave out tensors larger than this many bytes each; their dtype and shape are recorded.
        verbose: 1 prints what is entered, left, stored and skipped.

    Yields:
        the capture: a mapping from key to value.

    Raises:
        FilchError: the modules or patterns make no sense, or `dump_file` can't be written: before anything runs.
    """
    chosen = select(modules, submodules=submodules, include=include, exclude=exclude)
    if not (storage_limit is None or isinstance(storage_limit, int | float)):
        raise FilchError(f"storage_limit is a number of bytes like 2**28, not {storage_limit!r}")
    with ExitStack() as stack:
        store: Store = MemoryStore() if dump_file is None else stack.enter_context(DumpWriter(dump_file))
        recorder = _Recorder(chosen, store, storage_limit, Narrator(verbose))
        if dump_file is not None:
            recorder.capture.dump_file = recorder.capture.source = os.fspath(dump_file)
        stack.callback(recorder.unhook)
        recorder.hook()
        token = _active.set((*_active.get(), recorder))
        try:
            yield recorder.capture
        finally:
            _active.reset(token)
            recorder.finish()


def is_stealing() -> bool:
    """Whether the code runs inside a `steal_forward` block."""
    return bool(_active.get())


def steal_append(name: str, value: Any) -> None:
    """Add a value of one's own to the innermost capture, under `(name, iteration, "V")`; outside of any, do nothing.

    Args:
        name: any name; used again, it counts the iterations.
        value: a tensor, or any nesting that holds some.
    """
    if not isinstance(name, str):
        raise FilchError(f"steal_append takes a name and a value; the name is a string, not {name!r}")
    if recorders := _active.get():
        recorders[-1].append(name, value)


@dataclass
class _Frame:
    """One running call of a hooked module.

    `handled` is the exception that the caller was handling when it made the call. Torch runs our hook while it handles
    what a forward raised, so another exception than this one, then, is the forward's.
    """

    name: str
    iteration: int
    origin: Origin
    handled: BaseException | None


class _Root:
    """One running call of an outermost module: the paths below it, and how often each ran."""

    def __init__(self, module: nn.Module, index: int) -> None:
        self.index = index
        self.ran: Counter[str] = Counter()
        self.paths = {id(below): path for path, below in module.named_modules()}

    def enter(self, module: nn.Module) -> Origin:
        path = self.paths.get(id(module))
        if path is None:  # called from the outermost module, but not held by it
            return Origin(None, self.index, 0)
        self.ran[path] += 1
        return Origin(path, self.index, self.ran[path] - 1)


class _Recorder:
    """The hooks of one block, and what they have taken so far."""

    def __init__(
        self, chosen: list[tuple[str, nn.Module]], store: Store, storage_limit: int | None, narrator: Narrator
    ) -> None:
        self._chosen = chosen
        self._store = store
        self._limit = storage_limit
        self._narrator = narrator
        self._lock = threading.RLock()
        self._running = threading.local()
        self._calls: Counter[str] = Counter()
        self._appended: Counter[str] = Counter()
        self._roots = 0
        self._handles: list[Any] = []
        self._records: dict[Key, Record] = {}
        self._modules = {name: ModuleInfo.of(module) for name, module in chosen}
        self.capture = Capture(self._records, self._modules, store)

    def hook(self) -> None:
        """Start to listen."""
        for name, module in self._chosen:
            before, after = self._hooks(name)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))

    def unhook(self) -> None:
        """Leave nothing on the modules; torch may still call a hook, in a thread that runs the model on."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def finish(self) -> None:
        """Close the store; a capture that went to disk reads from its dump from here on."""
        with self._lock:
            self.unhook()
            self._store.close(self._modules)
        if isinstance(self._store, DumpWriter):
            self.capture.holder = restore(self._store.path).holder
        self._narrator.gathered(len(self._records), self.capture.dump_file)

    def _hooks(self, name: str) -> tuple[Any, Any]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if _is_traced():
                return
            with self._lock:
                if not self._handles:
                    return
                frame = self._enter(name, module)
                self._narrator.enter(name, module, frame.iteration, args, kwargs)
                self._record(Key(name, frame.iteration, "I"), (args, kwargs), frame.origin)

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:  # noqa: ARG001  the hook's signature
            if _is_traced():
                return
            with self._lock:
                frame = self._leave(name)
                if frame is None or not self._handles:
                    return
                if output is None and sys.exception() is not frame.handled:
                    self._narrator.failed(name)
                    return
                self._narrator.leave(name, output)
                self._record(Key(name, frame.iteration, "O"), output, frame.origin)

        return before, after

    def _stack(self) -> list[_Frame]:
        if not hasattr(self._running, "frames"):
            self._running.frames, self._running.root = [], None
        return self._running.frames  # type: ignore[no-any-return]

    def _enter(self, name: str, module: nn.Module) -> _Frame:
        stack = self._stack()
        if not stack:
            self._running.root = _Root(module, self._roots)
            self._roots += 1
        # One module under two names is one call: its second name's frame stands where the first one's does.
        names = [frame.name for frame in stack if frame.origin is stack[-1].origin]
        same = names and name not in names and self._is_same(names[-1], module)
        origin = stack[-1].origin if same else self._running.root.enter(module)
        frame = _Frame(name, self._calls[name], origin, sys.exception())
        self._calls[name] += 1
        stack.append(frame)
        return frame

    def _is_same(self, name: str, module: nn.Module) -> bool:
        return any(known == name and held is module for known, held in self._chosen)

    def _leave(self, name: str) -> _Frame | None:
        """Take the call's frame off; None if it has none, as it began before the block or failed before our hook."""
        stack = self._stack()
        index = next((index for index in reversed(range(len(stack))) if stack[index].name == name), None)
        if index is None:
            return None
        frame = stack.pop(index)
        # Above it stand its module's other names, and calls that ended unseen: torch tells hooks of `Exception`s only.
        stack[index:] = [other for other in stack[index:] if other.origin is frame.origin]
        return frame

    def append(self, name: str, value: Any) -> None:
        with self._lock:
            call = self._running.root.index if self._stack() else None
            count = self._appended[name]
            self._appended[name] += 1
            self._record(Key(name, count, "V"), value, Origin(None, call, count))

    def _record(self, key: Key, value: Any, origin: Origin) -> None:
        def put(tensor: torch.Tensor, path: str) -> Spec:
            reason = not_storable(tensor) or self._over_limit(tensor)
            if reason is None:
                return {"tensor": self._store.put(tensor, f"{key.label}{path_of(key.kind, path)}")}
            self._narrator.skipped(key, tensor, reason)
            return skipped(tensor, reason)

        record = Record(encode(value, put), origin)
        self._store.add(key, record)
        self._records[key] = record
        if not (isinstance(record.spec, dict) and "skipped" in record.spec):
            self._narrator.stored(key, value)

    def _over_limit(self, tensor: torch.Tensor) -> str | None:
        size = tensor.numel() * tensor.element_size()
        over = self._limit is not None and size > self._limit
        return f"its {size} bytes are over the storage limit of {self._limit}" if over else None


def _is_traced() -> bool:
    """Whether torch writes the model down instead of running it; it would write our copies down too."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def path_of(kind: Kind | str, path: str) -> str:
    """A path inside a record as a person reads it; of inputs, `[0][1]` is `.args[1]`, `[1]['x']` is `.kwargs['x']`."""
    if kind != "I":
        return path
    return path.replace("[0]", ".args", 1) if path.startswith("[0]") else path.replace("[1]", ".kwargs", 1)
