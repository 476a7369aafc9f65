"""The hooks of one capture, which encode and store values."""

import logging
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .._errors import FilchError
from .._key import Key, PlainKey
from .._phases import Phase
from .._records import Origin, Totals
from ..private._torch import DisableTorchFunction, is_tracing
from ..values._decode import decode
from ..values._dtypes import dtype_name, reason_not_storable
from ..values._encode import encode, local_form
from ..values._foreign import Spec, skipped
from ..values._growth import MIN_BYTES, MIN_RANK, GrownBytes, GrowthTracker
from ..values._packed import Packed, pack, spec_of_one
from ..values._raw import (
    SMALL,
    checksum,
    contiguous_cpu,
    is_mode_active,
    no_modes_or_grad,
    small_bytes,
    use_one_thread_after_fork,
)
from ..values._sharing import StoredTensors
from ..values._statistics import statistics, statistics_to_json
from ..values._tensors import is_plain
from ._calls import Calls, RunningCall, graph_task_id, is_same
from ._changes import Changes
from ._options import Options
from ._placement_tags import create_placement_tags
from ._store import Store
from ._verbose import ProgressPrinter

_log = logging.getLogger("filch")
_is_compiling = torch.compiler.is_compiling

_NOT_LAZY = False, False  # of a tensor that is neither a lazy conjugate nor a lazy negative
_PROGRESS_INTERVAL = 64  # records between two reports of progress

_active_recorders: "weakref.WeakSet[Recorder]" = weakref.WeakSet()
_filch_hooks: set[int] = set()  # the ids of all recorders' hooks, which change no values


class Extra:
    """Records something more than module inputs and outputs; this base class does nothing.

    Methods are called with the recorder's lock held. Callbacks from torch are not: these use `Recorder.guarded`.
    """

    def start(self, recorder: "Recorder") -> None:
        """Start with the block."""
        self._recorder = recorder

    def call_began(self, frame: RunningCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Handle the beginning of a captured module's call."""

    def call_ended(self, frame: RunningCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Handle the end of a call that did not raise; its inputs and output are recorded."""

    def stop(self) -> None:
        """Stop at the end of the block; the store is still open."""


class Recorder:
    """The hooks of one `steal_forward` block.

    Attributes:
        failed: the exceptions of calls that raised, by the key that the output would have had.
        totals: the amount of recorded data.
        options: the options of the capture.
        lock: held while anything is recorded.
        calls: the running calls of modules.
        placement_tags: the layouts of plain tensors that DTensors were made of or converted to; None if there are no
            DTensors.
    """

    def __init__(
        self,
        chosen: list[tuple[str, nn.Module]],
        store: Store,
        options: Options,
        printer: ProgressPrinter,
        phase: Phase,
        *,
        changes: Changes,
    ) -> None:
        self.failed: dict[Key, str] = {}
        self.totals = Totals()
        self._chosen = chosen
        self._store = store
        self.options = options
        self._printer = printer
        self._phase = phase
        self.placement_tags = create_placement_tags()
        limits = options.storage_limit, options.total_limit
        is_other = options.statistics_only or options.to_sink or printer.verbose
        self._is_whole = limits == (None, None) and not is_other  # every tensor is stored, and nothing is printed
        self._stored_tensors = StoredTensors()
        self._growth = GrowthTracker()
        self._grown_bytes = GrownBytes()
        self._caller_inputs: dict[
            tuple[int, str], tuple[tuple[Any, ...], dict[str, Any], Spec | None]
        ] = {}  # by thread and name of the module: args, kwargs, and their spec if they were stored
        self.lock = threading.RLock()
        self.calls = Calls(chosen, changes.report)  # not a method of this: a cycle would keep the data file open
        self._appended: Counter[str] = Counter()
        self._handles: list[Any] = []
        self._has_first_hook: set[str] = set()  # the names of the modules whose callers' inputs are kept
        self._hook_ids: dict[str, tuple[int, int]] = {}  # of the pre-hook and the forward hook, by module name
        self.lost: set[str] = set()  # the names of the modules whose hooks something else has removed
        self._warned: set[str] = set()
        self._extras: list[Extra] = []  # those that have started

    def hook(self, extras: Iterable[Extra]) -> None:
        """Register all hooks and start the extras."""
        _active_recorders.add(self)
        for name, module in self._chosen:
            others = module._forward_pre_hooks.keys() - _filch_hooks  # noqa: SLF001  there is no public API
            if self.placement_tags is not None or others:
                self._keep_caller_inputs(name, module)
            before, after = _Hook(self, name, self._before), _Hook(self, name, self._after)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
            self._hook_ids[name] = self._handles[-2].id, self._handles[-1].id
        _filch_hooks.update(handle.id for handle in self._handles)
        if self.placement_tags is not None:
            self.placement_tags.start()
        for extra in extras:
            extra.start(self)
            self._extras.append(extra)

    def _keep_caller_inputs(self, name: str, module: nn.Module) -> None:
        """Register a hook that keeps what the caller passes, before other hooks change it."""
        self._has_first_hook.add(name)
        first = _Hook(self, name, self._before_other_hooks)
        self._handles.append(module.register_forward_pre_hook(first, prepend=True, with_kwargs=True))
        _filch_hooks.add(self._handles[-1].id)

    def unhook(self) -> None:
        """Remove all hooks and stop the extras; in another thread, torch may still call a removed hook."""
        with self.lock:
            if self._handles:  # else this is the second call, or the process was forked
                self.lost = {name for name, module in self._chosen if not self._is_hooked(name, module)}
            for handle in self._handles:
                handle.remove()
                _filch_hooks.discard(handle.id)
            if self.placement_tags is not None and self._handles:
                self.placement_tags.stop()
            self._handles.clear()
            extras, self._extras = self._extras, []
            for extra in reversed(extras):
                try:
                    extra.stop()
                except Exception as error:  # noqa: BLE001  the other extras must stop, and the dump must be finished
                    self.warn_once(f"at the end of the block: {type(error).__name__}: {error}")

    def _is_hooked(self, name: str, module: nn.Module) -> bool:
        if name not in self._hook_ids:  # registering was refused
            return True
        before, after = self._hook_ids[name]
        return before in module._forward_pre_hooks and after in module._forward_hooks  # noqa: SLF001  there is no public API

    @property
    def is_active(self) -> bool:
        """Whether the block has not ended."""
        return bool(self._handles)

    def called(self) -> set[str]:
        """Return the names of called modules and of values given to `steal_append`."""
        return {*self.calls.called(), *self._appended}

    def stop_after_fork(self) -> None:
        """Stop recording in a forked process, which has no writer thread; the files belong to the parent."""
        self.lock = threading.RLock()  # another thread may have held the lock
        self._handles.clear()

    def _before_other_hooks(
        self, name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], __: None
    ) -> None:
        """Keep the inputs as the caller passed them, and store those of an outermost call."""
        if graph_task_id() != -1:  # a backward pass repeats the forward (see `_before`)
            return
        iteration = self.calls.count(name)
        is_stored = self.options.inputs and self.options.wants(iteration) and not self.options.to_sink
        is_stored = is_stored and self.calls.innermost() is None
        spec = self._encode(Key(name, iteration, "A"), (args, kwargs)) if is_stored else None
        self._caller_inputs[threading.get_ident(), name] = args, kwargs, spec

    def _before(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: None) -> None:
        """Handle the beginning of a call."""
        if not self._handles or self._hook_ids[name][0] not in module._forward_pre_hooks:  # noqa: SLF001  there is no public API
            return  # torch.ao copies the hooks of a module to the one that replaces it, without `with_kwargs`
        if graph_task_id() != -1:
            self.totals.recomputed += 1  # activation checkpointing repeats the forward in the backward pass
            return
        frame = self.calls.enter(name, module)
        given = self._caller_inputs.pop((threading.get_ident(), name), (args, kwargs, None))
        frame.caller_inputs, spec = given[:2], given[2]  # the spec is None unless `_before_other_hooks` stored them
        if self._printer.verbose:
            self._printer.enter(name, module, frame.iteration, args, kwargs)
        is_last = _move_hooks_last(module, *self._hook_ids[name])
        for extra in self._extras:
            extra.call_began(frame, args, kwargs)
        if not self.options.inputs or not self.options.wants(frame.iteration):
            return
        if is_last and spec is None:
            self.record((name, frame.iteration, "I"), (args, kwargs), frame.origin)
            return
        key = Key(name, frame.iteration, "I")
        own = self._encode(key, (args, kwargs))
        frame.pending_inputs = (args, kwargs, own, own if spec is None else spec)
        if is_last:
            self._record_pending(frame, args, kwargs)
        elif name not in self._has_first_hook:  # later hooks may change the inputs
            self._keep_caller_inputs(name, module)

    def _record_pending(self, frame: RunningCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the inputs as encoded in our hook, or as replaced by later hooks, and the caller's if these differ."""
        old_args, old_kwargs, spec, given = frame.pending_inputs
        frame.pending_inputs = None
        key = Key(frame.name, frame.iteration, "I")
        unchanged = is_same((*old_args, *old_kwargs.values()), (*args, *kwargs.values()))
        unchanged = unchanged and old_kwargs.keys() == kwargs.keys()
        spec = spec if unchanged else self._encode(key, (args, kwargs))
        self._add_record(key, spec, frame.origin, (args, kwargs))
        if given != spec and frame.origin.path == "":
            self._add_record(key._replace(kind="A"), given, frame.origin, frame.caller_inputs)

    def _after(self, name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Handle the end of a call."""
        if graph_task_id() != -1:  # a backward pass repeats the forward (see `_before`)
            return
        frame = self.calls.leave(name)
        if frame is None or not self._handles:  # the call began before its hooks were there, or the block has ended
            return
        if frame.pending_inputs is not None:
            self._record_pending(frame, args, kwargs)
        exception = sys.exception()
        if output is None and exception is not frame.caller_exception:  # torch passes None if the forward raised
            self._record_failure(Key(name, frame.iteration, "O"), exception)
            return
        if self._printer.verbose:
            self._printer.leave(name, output)
        if self.options.outputs and self.options.wants(frame.iteration):
            self.record((name, frame.iteration, "O"), output, frame.origin)
        for extra in self._extras:
            extra.call_ended(frame, args, kwargs, output)

    def _record_failure(self, key: Key, exception: BaseException | None) -> None:
        """Record that a call raised instead of returning the output `key`."""
        text = f"{type(exception).__name__}: {exception}" if exception is not None else "it raised"
        self.failed[key] = text
        self._store.add_failure(key, text)
        self._printer.failed(key.name)

    def handle_error(self, name: str, error: Exception) -> None:
        """Log an exception of our hooks, or raise it if `strict`: by default it must not end the model's run."""
        if self.options.strict or isinstance(error, FilchError):
            raise error
        self.warn_once(f"{name!r}: {type(error).__name__}: {error}; the model runs on, and this value is not recorded")

    def warn_once(self, message: str) -> None:
        """Log a warning, unless it was logged before."""
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s", message)

    def append(self, name: str, value: Any) -> None:
        """Record a value given to `steal_append`."""
        with self.lock:
            count = self._appended[name]
            self._appended[name] += 1
            self.record(Key(name, count, "V"), value, Origin(None, self.calls.current(), count))

    def record(self, key: PlainKey, value: Any, origin: Origin) -> None:
        """Record `value` as it is now."""
        if (self._store.error is None or not self._store_failed()) and not self._record_small(key, value, origin):
            key = Key(*key)
            self._add_record(key, self._encode(key, value), origin, value)

    def _record_small(self, key: PlainKey, value: Any, origin: Origin) -> bool:
        """Record a value that is one small tensor, or inputs (`key[2]` is `I`) that are one, such as of `module(x)`.

        This does what `_encode`, `_store_tensor` and `_add_record` do, in half the time. It returns False, and leaves
        the value to them, if it is another or one that needs more than its bytes.
        """
        if not self._is_whole or is_mode_active():  # `encode` disables the modes
            return False
        tensor, path = (_only_argument(value), "[0][0]") if key[2] == "I" else (value, "")
        layout: Spec = {}
        if self.placement_tags is not None:
            tensor, layout = _local_form(tensor)
        if not is_plain(tensor):
            return False
        nbytes, address = tensor.nbytes, tensor.data_ptr()
        if nbytes > SMALL or (nbytes >= MIN_BYTES and tensor.dim() >= MIN_RANK) or (nbytes and not address):
            return False  # it is large, it may have grown as a cache does, or its memory was freed
        data = small_bytes(address, nbytes)
        data_checksum = hash(data)
        lookup = self._stored_tensors.lookup_key(tensor, _NOT_LAZY)  # None: it can't be recognized when it recurs
        location = None if lookup is None else self._stored_tensors.find(lookup, data_checksum, nbytes)
        if location is None:
            reference = self._store.put_small(data, tensor.dtype, tuple(tensor.shape), key, path)
            self.totals.nbytes += nbytes
            if lookup is not None:
                self._stored_tensors.remember(lookup, data_checksum, nbytes, reference)
        else:
            reference, start = location
            if start is not None:
                return False  # it is part of a stored tensor
            self.totals.shared += nbytes
        if self.placement_tags is not None and not layout:
            self.placement_tags.stored(tensor, reference)
        packed = pack(spec_of_one({"tensor": reference, **layout}, key[2])) if layout else reference
        self._add_packed(key, packed, origin)
        return True

    def _store_failed(self) -> bool:
        """Return whether the store accepts no more records; log its error once, or raise it."""
        error = self._store.error
        if error is None:
            return False
        if self.options.stop:
            raise error
        self.warn_once(f"{error}; the model runs on, and nothing more is recorded")
        return True

    @contextmanager
    def guarded(self, name: str) -> Iterator[None]:
        """Hold the lock and keep exceptions out of the model's run; for callbacks that torch calls."""
        with self.lock:
            try:
                yield
            except Exception as error:  # noqa: BLE001  see `handle_error`
                self.handle_error(name, error)

    def accepts(self, kind: str) -> bool:
        """Return whether this kind of record is selected and can still be stored."""
        wanted = {"I": self.options.inputs, "O": self.options.outputs}.get(kind, True)  # an extra selects the others
        return wanted and not self._store_failed()

    def encode_part(self, key: Key, value: Any, path: str) -> Spec:
        """Store part of a value as it is now, and return its spec; `add_record` makes a record of the parts."""
        return encode(value, lambda tensor, inner: self._store_tensor(tensor, key, inner), path, exact=False)

    def add_record(self, key: Key, spec: Spec, origin: Origin) -> None:
        """Make a record of a spec whose tensors are stored."""
        if not self._store_failed():
            self._add_record(key, spec, origin, decode(spec, self._store.get) if self._printer.verbose else None)

    def recorded_value(self, key: Key) -> Any:
        """Return the recorded value of a key; None if there is none."""
        spec = next((row[3] for row in self._store.rows(0) if tuple(row[:3]) == key), None)
        return decode(spec, self._store.get)

    def _encode(self, key: Key, value: Any) -> Spec:
        """Store the tensors of a value, and return its spec."""
        return encode(value, lambda tensor, path: self._store_tensor(tensor, key, path))

    def _add_record(self, key: Key, spec: Spec, origin: Origin, value: Any) -> None:
        """Add a record to the store, the totals and the progress output, which shows `value`."""
        self._add_packed(key, pack(spec), origin)
        if self._printer.verbose and not (isinstance(spec, dict) and "skipped" in spec):
            self._printer.stored(key, value)

    def _add_packed(self, key: PlainKey, packed: Packed, origin: Origin) -> None:
        """Add a record to the store and the totals."""
        self._store.add(key, packed, origin)
        totals = self.totals
        totals.records += 1
        if not totals.records % _PROGRESS_INTERVAL:
            self._phase.next(f"{totals.records:,} values, {totals.nbytes:,} bytes")

    def _store_tensor(self, tensor: torch.Tensor, key: Key, path: str) -> Spec:
        """Store a tensor unless it is stored already, and return its spec."""
        spec = self._store_once(tensor, key, path)
        if self.placement_tags is not None and "tensor" in spec and not self.options.to_sink and "part" not in spec:
            self.placement_tags.stored(tensor, spec["tensor"])
        return spec

    def _store_once(self, tensor: torch.Tensor, key: Key, path: str) -> Spec:
        """Return what `_store_tensor` returns."""
        on_cpu, limited = tensor.is_cpu, self.options.storage_limit is not None
        reason = reason_not_storable(tensor) or (self._skip_reason(tensor) if limited or not on_cpu else None)
        if reason is not None:
            self._printer.skipped(key, tensor, reason)
            return skipped(tensor, reason)
        if self.options.statistics_only:
            return {"statistics": statistics_to_json(statistics(tensor))}
        if self.options.to_sink:  # no other record can refer to this tensor later
            self.totals.nbytes += tensor.nbytes
            return {"tensor": self._store.put(contiguous_cpu(tensor), key, path)}
        raw, data_checksum, contiguous_nbytes = tensor, None, 0  # None: on a device; 0: there, or not contiguous
        flags = tensor.is_conj(), tensor.is_neg()
        if on_cpu:
            if flags == _NOT_LAZY and tensor.is_contiguous():
                contiguous_nbytes = tensor.nbytes
            else:
                raw = contiguous_cpu(tensor)
            data_checksum = checksum(raw.data_ptr(), raw.nbytes)
        lookup = self._stored_tensors.lookup_key(tensor, flags)
        location = None if lookup is None else self._stored_tensors.find(lookup, data_checksum, contiguous_nbytes)
        stored_bytes = self.totals.nbytes
        # Beyond what `admit` allows in one value, a reader would refuse grown tensors: these are stored whole.
        may_share = location is None or self._grown_bytes.admit(key, location[0], tensor.nbytes, stored_bytes)
        if location is not None and may_share:
            self.totals.shared += tensor.nbytes
            stored, start = location
            if start is None:  # it is the whole stored tensor
                return {"tensor": stored}
            return {"tensor": stored, "part": [start, dtype_name(tensor.dtype), list(tensor.shape)]}
        may_grow = may_share and data_checksum is not None and raw.dim() >= MIN_RANK
        reference = self._store_growth(raw, key, path) if may_grow else self._store_whole(raw, key, path)
        if reference is None:
            limit = self.options.total_limit
            return skipped(tensor, f"its {tensor.nbytes} bytes would exceed the total limit of {limit}")
        if lookup is not None:
            self._stored_tensors.remember(lookup, data_checksum, contiguous_nbytes, reference)
        return {"tensor": reference}

    def _store_whole(self, raw: torch.Tensor, key: Key, path: str) -> int | None:
        """Store a tensor; return None if that would exceed the total limit."""
        total, nbytes = self.options.total_limit, raw.nbytes
        if total is not None and self.totals.nbytes + nbytes > total:
            return None
        self.totals.nbytes += nbytes
        return self._store.put(raw, key, path)

    def _store_growth(self, raw: torch.Tensor, key: Key, path: str) -> int | None:
        """Store only what a tensor adds to the previous one at its place; return None as `_store_whole`."""
        place = (key.name, key.kind, path)
        grown = self._growth.find(place, raw)
        if grown is not None and not self._grown_bytes.admit(key, None, raw.nbytes, self.totals.nbytes):
            grown = None
        if grown is None:
            reference = self._store_whole(raw, key, path)
        else:
            with no_modes_or_grad():
                new = raw.detach().narrow(grown.dim, grown.length, raw.shape[grown.dim] - grown.length).contiguous()
            reference = self._store_whole(new, key, f"{path}[{grown.length}:]")
            if reference is not None:
                self.totals.shared += raw.nbytes - new.nbytes
                reference = self._store.extend(grown.first, reference, grown.dim)
        if reference is not None:
            self._growth.remember(place, raw, reference, grown)
        return reference

    def _skip_reason(self, tensor: torch.Tensor) -> str | None:
        """Return the reason for skipping a tensor, or None."""
        limit = self.options.storage_limit
        if limit is not None and tensor.nbytes > limit:
            return f"its {tensor.nbytes} bytes exceed the storage limit of {limit}"
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is being recorded"
        return None


class _Hook:
    """A hook of a module; copying or pickling the model inside the block replaces it by one that does nothing.

    Args:
        recorder: the recorder.
        name: the name of the module.
        callback: its method that handles the call, with `name` and the arguments that torch passes.
    """

    __slots__ = ("callback", "name", "recorder")

    def __init__(self, recorder: Recorder, name: str, callback: Callable[..., None]) -> None:
        self.recorder, self.name, self.callback = recorder, name, callback

    def __reduce__(self) -> tuple[Any, ...]:
        return _idle_hook, ()

    # Torch passes no `kwargs` to a hook that another thread is removing; the callback then finds the block ended.
    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None, output: Any = None) -> None:
        if _is_compiling() or is_tracing():  # torch would trace the hook's operations, too
            return
        recorder = self.recorder
        with recorder.lock:
            try:
                self.callback(self.name, module, args, kwargs, output)
            except Exception as error:  # noqa: BLE001  see `handle_error`
                recorder.handle_error(self.name, error)


def _only_argument(inputs: Any) -> Any:
    """Return the argument of inputs that are one positional argument; None for any others."""
    if type(inputs) is not tuple or len(inputs) != 2:
        return None
    args, kwargs = inputs
    return args[0] if type(args) is tuple and len(args) == 1 and type(kwargs) is dict and not kwargs else None


def _local_form(tensor: Any) -> tuple[Any, Spec]:
    """Return what `local_form` returns; None and no entries if it raises, so that `encode` handles the tensor."""
    try:
        with DisableTorchFunction():  # as in `encode`
            return local_form(tensor, exact=True)
    except Exception:  # noqa: BLE001  as in `encode`
        return None, {}


def _move_hooks_last(module: nn.Module, pre_hook: int, forward_hook: int) -> bool:
    """Move our hooks behind those registered later, and return whether the pre-hook was the last already.

    Only then has it seen the final inputs: torch has listed the pre-hooks of this call before.
    """
    # There is no public API; these are declared as dictionaries, and are OrderedDicts.
    pre_hooks: Any = module._forward_pre_hooks  # noqa: SLF001
    forward_hooks: Any = module._forward_hooks  # noqa: SLF001
    if next(reversed(forward_hooks), None) != forward_hook and not _is_last(forward_hook, forward_hooks):
        forward_hooks.move_to_end(forward_hook)
    if next(reversed(pre_hooks), None) == pre_hook or _is_last(pre_hook, pre_hooks):
        return True
    pre_hooks.move_to_end(pre_hook)
    return False


def _idle(*_: Any) -> None:
    """Do nothing; replaces our hooks on a copy of the model."""


def _idle_hook() -> Callable[..., None]:
    """Return the hook that replaces ours; `copy` and `pickle` call this."""
    return _idle


def _is_last(hook: int, hooks: dict[int, Any]) -> bool:
    """Return whether only hooks of Filch come after `hook`."""
    for later in reversed(hooks):
        if later == hook:
            return True
        if later not in _filch_hooks:
            return False
    return True  # it was removed meanwhile


def _stop_after_fork() -> None:
    use_one_thread_after_fork()
    for recorder in list(_active_recorders):
        recorder.stop_after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_stop_after_fork)
