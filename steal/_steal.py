"""The context manager that steals what modules take and give while a model runs."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from ._errors import DumpError, FilchError
from ._key import Key
from ._records import ModuleInfo, Records, Taken, Totals
from .capture._extra import Extra
from .capture._options import Iterations, options
from .capture._recorder import Recorder
from .capture._selection import Modules, select
from .capture._sink import PassingStore
from .capture._store import MemoryStore, Store
from .capture._unhookable import unseen
from .capture._verbose import Narrator
from .dump._writer import BUFFER, DumpWriter
from .extras._gradients import Gradients
from .extras._operators import Operators
from .extras._parameters import Parameters
from .extras._watch import NonFinite, Watch

_active: ContextVar[tuple[Recorder, ...]] = ContextVar("filch_active", default=())
_log = logging.getLogger("filch")


class Capture(Records):
    """What one `steal_forward` block took; usable inside the block too.

    Attributes:
        dump_file: where it is written, or None.
        totals: how much was taken.
    """

    dump_file: str | None = None

    def __init__(self, recorder: Recorder, modules: dict[str, ModuleInfo], store: Store) -> None:
        super().__init__(Taken(store.rows), modules, store, failed=recorder.failed)
        self.totals: Totals = recorder.totals
        self._store = store
        self._failed: DumpError | None = None

    @property
    def error(self) -> DumpError | None:
        """Why the dump ends before the run does, if it does; in the block, as far as is known."""
        return self._failed or self._store.error

    def flush(self) -> int:
        """Wait until all records so far are with the operating system, so that a kill can't take them.

        Returns:
            how many records these are; `recover` restores them, should the block not come to its end.
        """
        return self._store.flush()


@contextmanager
def steal_forward(
    modules: Modules,
    *,
    dump_file: str | os.PathLike[str] | None = None,
    sink: Callable[[Key, Any], object] | None = None,
    submodules: bool = False,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    kinds: Iterable[str] = ("I", "O"),
    iterations: Iterations = None,
    storage_limit: float | None = None,
    total_limit: float | None = None,
    statistics_only: bool = False,
    gradients: bool = False,
    parameters: bool = False,
    operators: bool | str | Iterable[str] = False,
    watch: str | None = None,
    on_nonfinite: Callable[[NonFinite], object] | None = None,
    compress: bool = False,
    buffer: int = BUFFER,
    on_error: str = "continue",
    strict: bool = False,
    verbose: int = 0,
) -> Iterator[Capture]:
    """Steal what modules take and give while the block runs.

    Each call of a module gives two records: `(name, iteration, "I")`, its `(args, kwargs)`, and `(name, iteration,
    "O")`, its output, both as they were at that moment. The model computes what it computes without: only hooks are
    used, and none is left behind.

    A tensor that several records hold is kept once, as long as its storage, offset, shape, strides, version and bytes
    are the same (on a GPU, the version alone tells whether the bytes are).

    Args:
        modules: a module, a `(name, module)` pair, or a list of either.
        dump_file: write everything to this ONNX file (see `restore`), while the model runs; without it the capture
            lives in memory.
        sink: call this with the key and value of each record instead of keeping it, when it is complete; memory then
            holds one value at a time, and the capture stays empty.
        submodules: take all modules below the given ones too, under `name.path`.
        include: take the submodules whose names match one of these patterns (`"decoder.layers.*.mlp"`; `**` crosses
            dots).
        exclude: leave out the submodules whose names match one of these patterns.
        kinds: `"I"` for what modules take, `"O"` for what they give.
        iterations: of each module: a number (the first ones), a range or slice (`slice(None, None, 10)`: every tenth),
            a list of numbers, or a function that says of a number whether it is wanted.
        storage_limit: leave out tensors larger than this many bytes each; their dtype and shape are recorded.
        total_limit: leave out tensors once this many bytes are kept.
        statistics_only: keep the `Statistics` of each tensor instead of its numbers.
        gradients: take the gradients with respect to inputs (`"GI"`) and output (`"GO"`) too, nested as these are, None
            where there is none: of the first backward pass through a call's output, inside the block. A gradient is
            that of its tensor, from all places where it went. What reentrant checkpointing runs has none: its calls
            build no graph, and those that the backward pass makes are not recorded.
        parameters: take the parameters of the given modules too (`"P"`), when an outermost call begins or the block
            ends and they have changed since, and their gradients (`"GP"`), each time something is accumulated.
        operators: take the ATen calls that stolen modules make in the forward pass, too: True, or patterns over their
            names (`"aten.mm.default"`). They are called `name/position.operator`, numbered in each module call. They
            are those of the thread that opened the block; what is compiled is not looked into.
        watch: `"nonfinite"` or `"nan"`: raise a `NonFiniteError` where the first one comes out of a stolen module, or
            out of an ATen call that `operators` takes, if it was not merely passed on or written on purpose. Of ATen
            calls, one whose infinity a later `where` throws away counts, too.
        on_nonfinite: call this with a `NonFinite` each time instead, and go on.
        compress: make the dump smaller, at the price of time.
        buffer: bytes of memory for what waits for the disk; when it is full, the model waits.
        on_error: what happens when the disk refuses: `"continue"` lets the model run on, logs a warning at the end and
            says why in `capture.error`; `"raise"` raises it into the run. What was written before is a valid dump.
        strict: raise what goes wrong in our hooks into the model's run, too; otherwise it is logged.
        verbose: 1 prints what is entered, left, stored and skipped, and a summary.

    Yields:
        the capture: a mapping from key to value.

    Raises:
        FilchError: the modules, patterns or options make no sense, or `dump_file` can't be written: before anything
            runs.
        NonFiniteError: `watch` found something; out of the model's forward.
    """
    if sink is not None and (dump_file is not None or watch is not None):
        other = "dump_file, which keeps" if dump_file is not None else "watch, which looks back at"
        raise FilchError(f"sink hands each record on and keeps none: it does not go with {other} them")
    chosen = select(modules, submodules=submodules, include=include, exclude=exclude)
    wishes = options(
        kinds=kinds,
        iterations=iterations,
        storage_limit=storage_limit,
        total_limit=total_limit,
        statistics_only=statistics_only,
        strict=strict,
        on_error=on_error,
        passing=sink is not None,
    )
    extras = _extras(modules if parameters else None, operators, watch, on_nonfinite, gradients=gradients)
    infos = {name: ModuleInfo.of(module) for name, module in chosen}
    with ExitStack() as stack:
        store: Store = MemoryStore() if sink is None else PassingStore(sink)
        if dump_file is not None:
            store = stack.enter_context(DumpWriter(dump_file, infos, buffer=buffer, compress=compress))
        narrator = Narrator(verbose)
        recorder = Recorder(chosen, store, wishes, narrator, extras)
        capture = Capture(recorder, infos, store)
        if dump_file is not None:
            capture.dump_file = capture.source = os.fspath(dump_file)
        stack.callback(recorder.unhook)
        recorder.hook()
        _active.set((*_active.get(), recorder))
        raised = True
        try:
            yield capture
            raised = False
        finally:
            # Not by a token: the block may end in another thread than it began in, and not in the order of others.
            _active.set(tuple(other for other in _active.get() if other is not recorder))
            recorder.unhook()
            if not raised and (told := unseen(chosen, recorder.ran())) is not None:
                _log.warning("%s", told)
            _finish(capture, store, stop=wishes.stop and not raised)  # what the block raised travels on
            narrator.gathered(capture.totals, capture.dump_file)


def _extras(
    modules: Modules | None,
    operators: bool | str | Iterable[str],  # noqa: FBT001  as users write it
    watch: str | None,
    on_nonfinite: Callable[[NonFinite], object] | None,
    *,
    gradients: bool,
) -> list[Extra]:
    found: list[Extra] = [Gradients()] if gradients else []
    if modules is not None:
        found.append(Parameters(select(modules, submodules=False, include=None, exclude=None)))
    if watch is None and on_nonfinite is not None:
        raise FilchError("on_nonfinite needs watch='nonfinite' or watch='nan'")
    watching = None if watch is None else Watch(watch, on_nonfinite)
    if operators not in (False, None):
        found.append(Operators(operators, watching))
    return found if watching is None else [*found, watching]  # what it raises comes after all records


def _finish(capture: Capture, store: Store, *, stop: bool) -> None:
    try:
        store.close()
    except DumpError as error:
        capture._failed = error  # noqa: SLF001  the other half of this module
    if isinstance(store, DumpWriter):
        capture.totals.waited = store.waited
        capture.records = Taken(store.rows)  # what was read before may not have come to the disk
    if capture.error is not None:
        if stop:
            raise capture.error
        _log.warning("%s", capture.error)


def is_stealing() -> bool:
    """Whether the code runs inside a `steal_forward` block."""
    return any(recorder.listens for recorder in _active.get())


def steal_append(name: str, value: Any) -> None:
    """Add a value of one's own to the innermost capture, under `(name, iteration, "V")`; outside of any, do nothing.

    Args:
        name: any name; used again, it counts the iterations.
        value: a tensor, or any nesting that holds some.
    """
    if not isinstance(name, str):
        raise FilchError(f"steal_append takes a name and a value; the name is a string, not {name!r}")
    if recorders := [recorder for recorder in _active.get() if recorder.listens]:
        recorders[-1].append(name, value)
