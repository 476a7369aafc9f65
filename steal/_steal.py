"""`steal_forward`, the context manager that captures the inputs and outputs of modules."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

from ._errors import DumpError, FilchError
from ._key import Key
from ._phases import phase
from ._records import LazyRecords, ModuleInfo, Records, Totals
from .capture._changes import Changes
from .capture._options import Iterations, Options
from .capture._recorder import Extra, Recorder
from .capture._selection import Modules, select
from .capture._sink import SinkStore
from .capture._store import MemoryStore, Store
from .capture._unhookable import uncalled_hooks_warning
from .capture._verbose import ProgressPrinter
from .dump._writer import BUFFER, DumpWriter
from .extras._collectives import Collectives
from .extras._gradients import Gradients
from .extras._operators import Operators
from .extras._parameters import Parameters
from .extras._watch import NonFinite, Watch

_active_recorders: ContextVar[tuple[Recorder, ...]] = ContextVar("filch_active", default=())
_log = logging.getLogger("filch")


class Capture(Records):
    """The records of one `steal_forward` block; usable inside the block, too.

    Attributes:
        dump_file: the path of the dump, or None.
        totals: the amount of recorded data.
    """

    dump_file: str | None = None

    def __init__(self, recorder: Recorder, modules: dict[str, ModuleInfo], store: Store) -> None:
        super().__init__(LazyRecords(store.rows), modules, store, recorder.failed)
        self.totals: Totals = recorder.totals
        self._store = store
        self._failed: DumpError | None = None

    @property
    def error(self) -> DumpError | None:
        """Why the dump is incomplete, or None; inside the block, as far as known so far."""
        return self._failed or self._store.error

    def flush(self) -> int:
        """Wait until all records so far are written to the operating system, and so survive a kill.

        Returns:
            the number of these records; `recover` restores them if the block does not complete.
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
    collectives: bool = False,
    watch: str | None = None,
    on_nonfinite: Callable[[NonFinite], object] | None = None,
    compress: bool = False,
    buffer: int = BUFFER,
    on_error: str = "continue",
    strict: bool = False,
    verbose: int = 0,
) -> Iterator[Capture]:
    """Capture the inputs and outputs of modules while the block runs.

    Each call of a module gives two records: `(name, iteration, "I")`, its `(args, kwargs)`, and `(name, iteration,
    "O")`, its output, both as they were at that moment. The model's results don't change: only hooks are used, and all
    are removed at the end. Modules that are replaced, added or compiled while the block runs are not recorded, and are
    named in a warning.

    A tensor that occurs in several records is stored once while its storage, offset, shape, strides, version and bytes
    are the same (on a GPU, only the version shows whether the bytes are).

    Args:
        modules: a module, a `(name, module)` pair, or a list of either.
        dump_file: write the records to this ONNX file while the model runs (see `restore`); without it, they are
            stored in memory. `{rank}` in it stands for the rank of the process: with several processes, each writes a
            file of its own.
        sink: call this with the key and value of each complete record instead of storing it. Only one value at a time
            is in memory, and the capture stays empty.
        submodules: also capture all modules below the given ones, as `name.path`.
        include: capture the submodules whose names match one of these patterns (`"decoder.layers.*.mlp"`; `**` matches
            several steps).
        exclude: don't capture the submodules whose names match one of these patterns.
        kinds: `"I"` for inputs, `"O"` for outputs.
        iterations: which iterations of each module to record: a number (the first ones), a range or slice
            (`slice(None, None, 10)`: every tenth), a list of numbers, or a function from a number to bool.
        storage_limit: skip tensors larger than this many bytes; their dtype and shape are recorded.
        total_limit: skip tensors once this many bytes are stored.
        statistics_only: store the `Statistics` of each tensor instead of its data.
        gradients: also record the gradients with respect to inputs (`"GI"`) and output (`"GO"`), with their structure
            and None where there is no gradient. Recorded is the first backward pass inside the block through a call's
            output. A gradient is the sum over all uses of its tensor. Calls inside reentrant checkpointing have none:
            they build no graph, and those that the backward pass repeats are not recorded.
        parameters: also record the parameters of the given modules (`"P"`), whenever they have changed at the
            beginning of an outermost call or the end of the block, and their gradients after each accumulation
            (`"GP"`), and as an optimizer's step or the end of the block finds them (`"GF"`).
        operators: also record the ATen calls that captured modules make in the forward pass: True, or patterns of
            names (`"aten.mm.default"`). They are named `name/position.operator`, numbered in each module call. Only
            calls of the thread that opened the block are seen, and none inside compiled code.
        collectives: also record which collectives of torch.distributed run (`"C"`): the name, the ranks, dtype and
            shape of the tensors, and whether in the backward pass. They are named after the module that runs them; in
            a backward pass, `""`.
        watch: `"nonfinite"` or `"nan"`: raise a `NonFiniteError` at the first such value in the output of a captured
            module, or of an ATen call selected by `operators`. An ATen call that only passes on infinities or writes
            given values does not count; one whose infinity a later `where` discards does.
        on_nonfinite: call this with each `NonFinite` instead, and continue.
        compress: compress the dump, which takes time.
        buffer: bytes of memory for data that is not written yet; when it is full, the model waits.
        on_error: what to do if the dump can't be written: `"continue"` lets the model run on, logs a warning at the
            end and sets `capture.error`; `"raise"` raises in the model's run. What was written before is a valid dump.
        strict: raise exceptions of the hooks in the model's run, too; otherwise they are logged.
        verbose: 1 prints module calls, stored and skipped values, and a summary.

    Yields:
        the capture: a mapping from key to value.

    Raises:
        FilchError: the modules, patterns or options are not valid, or `dump_file` can't be written; raised before the
            block runs.
        NonFiniteError: `watch` found a value; raised in the model's forward.
    """
    if sink is not None and (dump_file is not None or watch is not None):
        other = "dump_file" if dump_file is not None else "watch"
        raise FilchError(f"sink and {other} are mutually exclusive: with sink, no record is kept")
    choose = partial(select, modules, submodules=submodules, include=include, exclude=exclude)
    chosen = choose()
    changes = Changes(chosen, partial(choose, check=False))  # a later selection must not raise for what has changed
    options = Options(
        kinds=kinds,
        iterations=iterations,
        storage_limit=storage_limit,
        total_limit=total_limit,
        statistics_only=statistics_only,
        strict=strict,
        on_error=on_error,
        to_sink=sink is not None,
    )
    extras = _create_extras(modules if parameters else None, operators, watch, on_nonfinite, gradients=gradients)
    if collectives:
        extras.insert(0, Collectives())
    infos = {name: ModuleInfo.of(module) for name, module in chosen}
    with ExitStack() as stack:
        progress = stack.enter_context(phase("capture"))
        store: Store = MemoryStore() if sink is None else SinkStore(sink)
        if dump_file is not None:
            dump_file = _with_rank(dump_file)
            store = stack.enter_context(DumpWriter(dump_file, infos, buffer=buffer, compress=compress))
        printer = ProgressPrinter(verbose)
        recorder = Recorder(chosen, store, options, printer, progress, changes=changes)
        capture = Capture(recorder, infos, store)
        if dump_file is not None:
            capture.dump_file = capture.source = os.fspath(dump_file)
        stack.callback(recorder.unhook)
        recorder.hook(extras)
        _active_recorders.set((*_active_recorders.get(), recorder))
        raised = True  # until the block has ended without an exception
        try:
            yield capture
            raised = False
        finally:
            # No token: the block may end in another thread than it began in, and before a block that began earlier.
            _active_recorders.set(tuple(other for other in _active_recorders.get() if other is not recorder))
            recorder.unhook()
            changes.report(lost=recorder.lost)
            called = recorder.called() | recorder.lost
            if not raised and (warning := uncalled_hooks_warning(chosen, called)) is not None:
                _log.warning("%s", warning)
            if isinstance(store, DumpWriter) and recorder.placement_tags is not None:
                store.index.shardings = recorder.placement_tags.shardings
            _finish(capture, store, stop=options.stop and not raised)  # don't replace the block's own exception
            printer.summarize(capture.totals, capture.dump_file)


def _with_rank(dump_file: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the path with the rank of the process in place of `{rank}`."""
    try:
        path = os.fspath(dump_file)
    except TypeError:  # the writer refuses it
        return dump_file
    if not isinstance(path, str) or "{rank}" not in path:
        return dump_file
    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = str(torch.distributed.get_rank()) if has_group else os.environ.get("RANK", "0")
    return path.replace("{rank}", rank)


def _create_extras(
    parameter_modules: Modules | None,
    operators: bool | str | Iterable[str],  # noqa: FBT001  as users write it
    watch: str | None,
    on_nonfinite: Callable[[NonFinite], object] | None,
    *,
    gradients: bool,
) -> list[Extra]:
    """Return the extras that the options select; `parameter_modules` are those whose parameters to record, or None."""
    extras: list[Extra] = [Gradients()] if gradients else []
    if parameter_modules is not None:
        extras.append(Parameters(select(parameter_modules, submodules=False, include=None, exclude=None)))
    if watch is None and on_nonfinite is not None:
        raise FilchError("on_nonfinite needs watch='nonfinite' or watch='nan'")
    watch_extra = None if watch is None else Watch(watch, on_nonfinite)
    if operators not in (False, None):
        extras.append(Operators(operators, watch_extra))
    return extras if watch_extra is None else [*extras, watch_extra]  # last: it may raise once the others have recorded


def _finish(capture: Capture, store: Store, *, stop: bool) -> None:
    """Close the store, and raise (if `stop`) or log its error."""
    try:
        store.close()
    except DumpError as error:
        capture._failed = error  # noqa: SLF001  part of this module
    if isinstance(store, DumpWriter):
        capture.totals.waited = store.waited
        capture.records = LazyRecords(store.rows)  # records read before may not have been written
    if capture.error is not None:
        if stop:
            raise capture.error
        _log.warning("%s", capture.error)


def is_stealing() -> bool:
    """Return whether the code runs inside a `steal_forward` block."""
    return any(recorder.is_active for recorder in _active_recorders.get())


def steal_append(name: str, value: Any) -> None:
    """Add a value to the innermost capture, under `(name, iteration, "V")`; outside of any block, do nothing.

    Args:
        name: any name; each use of the same name is a new iteration.
        value: any nesting of tensors and other values.
    """
    if not isinstance(name, str):
        raise FilchError(f"steal_append takes a name and a value; the name must be a string, not {name!r}")
    if recorders := [recorder for recorder in _active_recorders.get() if recorder.is_active]:
        recorders[-1].append(name, value)
