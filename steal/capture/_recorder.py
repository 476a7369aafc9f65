"""The hooks of one capture, and what they take."""

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
from .._key import Key
from .._records import Origin, Totals
from ..values._dtypes import dtype_name, not_storable
from ..values._growth import RANK, GrowthTracker
from ..values._raw import checksum, contiguous_cpu, no_modes_or_grad, use_one_thread_after_fork
from ..values._sharing import StoredTensors
from ..values._statistics import statistics, to_json
from ..values._structure import Spec, decode, encode, skipped
from ._calls import Calls, Frame
from ._extra import Extra
from ._options import Options
from ._store import Store
from ._verbose import Narrator

_log = logging.getLogger("filch")
_is_compiling = torch.compiler.is_compiling
_is_tracing: Callable[[], bool] = torch._C._is_tracing  # noqa: SLF001  torch.jit's own asks this
_in_backward = torch._C._current_graph_task_id  # noqa: SLF001  what torch.utils.checkpoint itself asks

_AS_IT_READS = False, False  # the flags of a tensor that is no lazy conjugate and no lazy negative
_STEP = 64  # records between two lines for those who show progress

_listening: "weakref.WeakSet[Recorder]" = weakref.WeakSet()
_ours: set[int] = set()  # the hooks of all recorders: these change nothing


class Recorder:
    """The hooks of one block, and what they have taken so far.

    Attributes:
        failed: the calls that raised, by the key of the output that they don't have.
        totals: how much it is.
        lock: held while anything is taken.
    """

    def __init__(
        self,
        chosen: list[tuple[str, nn.Module]],
        store: Store,
        options: Options,
        narrator: Narrator,
        extras: Iterable[Extra] = (),
    ) -> None:
        self.failed: dict[Key, str] = {}
        self.totals = Totals()
        self._chosen = chosen
        self._store = store
        self._options = options
        self._inputs, self._outputs, self._wanted = options.inputs, options.outputs, options.wanted
        self._statistics_only = options.statistics_only
        self._limited = options.storage_limit is not None
        self._passing = options.passing
        self._narrator = narrator
        self._sharing = StoredTensors()
        self._growth = GrowthTracker()
        self.lock = threading.RLock()
        self._calls = Calls(chosen)
        self._appended: Counter[str] = Counter()
        self._handles: list[Any] = []
        self._told: set[str] = set()
        self._wished = tuple(extras)
        self._extras: list[Extra] = []  # those that have started

    def hook(self) -> None:
        """Start to listen."""
        _listening.add(self)
        for name, module in self._chosen:
            before, after = _Before(self, name), _After(self, name)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
            before.ids = self._handles[-2].id, self._handles[-1].id
        _ours.update(handle.id for handle in self._handles)
        for extra in self._wished:
            extra.start(self)
            self._extras.append(extra)

    def unhook(self) -> None:
        """Leave nothing on the modules; torch may still call a hook, in a thread that runs the model on."""
        with self.lock:
            for handle in self._handles:
                handle.remove()
                _ours.discard(handle.id)
            self._handles.clear()
            extras, self._extras = self._extras, []
            for extra in reversed(extras):
                try:
                    extra.stop()
                except Exception as error:  # noqa: BLE001  the others have to stop too, and the dump is not finished yet
                    self.tell(f"at the end of the block: {type(error).__name__}: {error}")

    @property
    def listens(self) -> bool:
        """Whether the block has not ended."""
        return bool(self._handles)

    def ran(self) -> set[str]:
        """The names of the modules that were called, and of values of the user's own."""
        return {*self._calls.ran(), *self._appended}

    def fall_silent(self) -> None:
        """In a forked process: the hooks are there, but the thread that writes is not; the files are the other's."""
        self.lock = threading.RLock()  # another thread may have held it
        self._handles.clear()

    def before(
        self, name: str, ids: tuple[int, int], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A call begins; `ids` are those of its two hooks."""
        if not self._handles:
            return
        if _in_backward() != -1:
            self.totals.recomputed += 1
            return
        frame = self._calls.enter(name, module)
        if self._narrator.verbose:
            self._narrator.enter(name, module, frame.iteration, args, kwargs)
        last = _stay_last(module, *ids)
        if self._extras:
            for extra in self._extras:
                extra.entered(frame, args, kwargs)
        if not self._inputs or not (self._wanted is None or self._wanted(frame.iteration)):
            return
        key = Key(name, frame.iteration, "I")
        if last:
            self.record(key, (args, kwargs), frame.origin)
        else:  # hooks of others come after ours, and may change what the module gets
            frame.pending = (args, kwargs, self._encoded(key, (args, kwargs)))

    def _take_pending(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the inputs as they were in our hook, or as they came out of the later ones, if these replaced them."""
        first, named, spec = frame.pending
        frame.pending = None
        key = Key(frame.name, frame.iteration, "I")
        same = len(first) == len(args) and named.keys() == kwargs.keys()
        same = same and all(
            old is new for old, new in zip((*first, *named.values()), (*args, *kwargs.values()), strict=True)
        )
        self._keep(key, spec if same else self._encoded(key, (args, kwargs)), frame.origin, (args, kwargs))

    def after(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A call ends."""
        if _in_backward() != -1:
            return
        frame = self._calls.leave(name)
        if frame is None or not self._handles:
            return
        if frame.pending is not None:
            self._take_pending(frame, args, kwargs)
        raised = sys.exception()
        if output is None and raised is not frame.handled:
            self._fail(Key(name, frame.iteration, "O"), raised)
            return
        if self._narrator.verbose:
            self._narrator.leave(name, output)
        if self._outputs and (self._wanted is None or self._wanted(frame.iteration)):
            self.record(Key(name, frame.iteration, "O"), output, frame.origin)
        if self._extras:
            for extra in self._extras:
                extra.left(frame, args, kwargs, output)

    def wants(self, iteration: int) -> bool:
        """See `Recording.wants`."""
        wanted = self._options.wanted
        return wanted is None or bool(wanted(iteration))

    def _fail(self, key: Key, raised: BaseException | None) -> None:
        what = f"{type(raised).__name__}: {raised}" if raised is not None else "it raised"
        self.failed[key] = what
        self._store.add_failure(key, what)
        if self._narrator.verbose:
            self._narrator.failed(key.name)

    def trouble(self, name: str, error: Exception) -> None:
        """The model's run is not to suffer from us, unless that was lookup for."""
        if self._options.strict or isinstance(error, FilchError):
            raise error
        self.tell(f"{name!r}: {type(error).__name__}: {error}; the model runs on, and this value is not kept")

    def tell(self, what: str) -> None:
        """See `Recording.tell`."""
        if what not in self._told:
            self._told.add(what)
            _log.warning("%s", what)

    def append(self, name: str, value: Any) -> None:
        """Take a value of the user's own."""
        with self.lock:
            count = self._appended[name]
            self._appended[name] += 1
            self.record(Key(name, count, "V"), value, Origin(None, self._calls.current(), count))

    def record(self, key: Key, value: Any, origin: Origin) -> None:
        """Take `value`, as it is now."""
        if self._store.error is None or not self._is_full():
            self._keep(key, self._encoded(key, value), origin, value)

    def _is_full(self) -> bool:
        error = self._store.error
        if error is None:
            return False
        if self._options.stop:
            raise error
        self.tell(f"{error}; the model runs on, and nothing more is kept")
        return True

    @contextmanager
    def guarded(self, name: str) -> Iterator[None]:
        """See `Recording.guarded`."""
        with self.lock:
            try:
                yield
            except Exception as error:  # noqa: BLE001  see `trouble`
                self.trouble(name, error)

    def takes(self, kind: str) -> bool:
        """See `Recording.takes`."""
        wanted = {"I": self._options.inputs, "O": self._options.outputs}.get(kind, True)
        return wanted and not self._is_full()

    def running(self) -> Frame | None:
        """See `Recording.running`."""
        return self._calls.innermost()

    def encoded(self, key: Key, value: Any, path: str) -> Spec:
        """See `Recording.encoded`."""
        return encode(value, lambda tensor, below: self._put(tensor, key, below), path, exact=False)

    def keep(self, key: Key, spec: Spec, origin: Origin) -> None:
        """See `Recording.keep`."""
        if not self._is_full():
            self._keep(key, spec, origin, self._decoded(spec) if self._narrator.verbose else None)

    def value(self, key: Key, default: Any) -> Any:
        """See `Recording.value`."""
        spec = next((row[3] for row in self._store.rows(0) if tuple(row[:3]) == key), None)
        return default if spec is None else self._decoded(spec)

    def _decoded(self, spec: Spec) -> Any:
        return decode(spec, self._store.get)

    def _encoded(self, key: Key, value: Any) -> Spec:
        return encode(value, lambda tensor, path: self._put(tensor, key, path))

    def _keep(self, key: Key, spec: Spec, origin: Origin, value: Any) -> None:
        self._store.add(key, spec, origin)
        totals = self.totals
        totals.records += 1
        if not totals.records % _STEP:
            done = f"{totals.records:,} values, {totals.nbytes:,} bytes"
            _log.debug("%s", done, extra={"filch_step": (totals.records, None)})
        if self._narrator.verbose and not (isinstance(spec, dict) and "skipped" in spec):
            self._narrator.stored(key, value)

    def _put(self, tensor: torch.Tensor, key: Key, path: str) -> Spec:
        on_cpu = tensor.is_cpu
        reason = not_storable(tensor) or (self._too_large(tensor) if self._limited or not on_cpu else None)
        if reason is not None:
            self._narrator.skipped(key, tensor, reason)
            return skipped(tensor, reason)
        if self._statistics_only:
            return {"statistics": to_json(statistics(tensor))}
        if self._passing:  # nothing is there later that another tensor could be the same as
            self.totals.nbytes += tensor.nbytes
            return {"tensor": self._store.put(contiguous_cpu(tensor), key, path)}
        raw, content, one_piece = tensor, None, 0
        flags = tensor.is_conj(), tensor.is_neg()
        if on_cpu:
            if flags == _AS_IT_READS and tensor.is_contiguous():
                one_piece = tensor.nbytes
            else:
                raw = contiguous_cpu(tensor)
            content = checksum(raw.data_ptr(), raw.nbytes)
        lookup = self._sharing.lookup_key(tensor, flags)
        known = None if lookup is None else self._sharing.find(lookup, content, one_piece)
        if known is not None:
            self.totals.shared += tensor.nbytes
            kept, start = known
            if start is None:
                return {"tensor": kept}
            return {"tensor": kept, "part": [start, dtype_name(tensor.dtype), list(tensor.shape)]}
        may_grow = content is not None and raw.dim() >= RANK
        reference = self._put_new_part(raw, key, path) if may_grow else self._put_whole(raw, key, path)
        if reference is None:
            limit = self._options.total_limit
            return skipped(tensor, f"its {tensor.nbytes} bytes would be over the total limit of {limit}")
        if lookup is not None:
            self._sharing.remember(lookup, content, one_piece, reference)
        return {"tensor": reference}

    def _put_whole(self, raw: torch.Tensor, key: Key, path: str) -> int | None:
        """None if that would be over the total limit."""
        total, nbytes = self._options.total_limit, raw.nbytes
        if total is not None and self.totals.nbytes + nbytes > total:
            return None
        self.totals.nbytes += nbytes
        return self._store.put(raw, key, path)

    def _put_new_part(self, raw: torch.Tensor, key: Key, path: str) -> int | None:
        """Keep what a tensor has more than the one that stood at its place before; None as above."""
        place = (key.name, key.kind, path)
        grown = self._growth.find(place, raw)
        if grown is None:
            reference = self._put_whole(raw, key, path)
        else:
            with no_modes_or_grad():
                new = raw.detach().narrow(grown.dim, grown.length, raw.shape[grown.dim] - grown.length).contiguous()
            reference = self._put_whole(new, key, f"{path}[{grown.length}:]")
            if reference is not None:
                self.totals.shared += raw.nbytes - new.nbytes
                reference = self._store.extend(grown.first, reference, grown.dim)
        if reference is not None:
            self._growth.remember(place, raw, reference, grown)
        return reference

    def _too_large(self, tensor: torch.Tensor) -> str | None:
        limit = self._options.storage_limit
        if limit is not None and tensor.nbytes > limit:
            return f"its {tensor.nbytes} bytes are over the storage limit of {limit}"
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is being recorded"
        return None


class _Hook:
    """A hook of ours. Who copies or pickles the model in the block gets one that does nothing in its place."""

    __slots__ = ("ids", "name", "recorder")

    ids: tuple[int, int]

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _idle_hook, ()


class _Before(_Hook):
    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_compiling() or _is_tracing():  # torch writes the model down, and would write our copies down, too
            return
        recorder = self.recorder
        with recorder.lock:
            try:
                recorder.before(self.name, self.ids, module, args, kwargs)
            except Exception as error:  # noqa: BLE001  see `trouble`
                recorder.trouble(self.name, error)


class _After(_Hook):
    __slots__ = ()

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if _is_compiling() or _is_tracing():
            return
        recorder = self.recorder
        with recorder.lock:
            try:
                recorder.after(self.name, args, kwargs, output)
            except Exception as error:  # noqa: BLE001  see `trouble`
                recorder.trouble(self.name, error)


def _stay_last(module: nn.Module, first: int, second: int) -> bool:
    """Let our hooks see what the module really gets and gives: whether ours is the last of the pre-hooks.

    Those that others registered since run after ours. For this call, only the forward hooks can be reordered: torch has
    listed the pre-hooks already.
    """
    # Nothing public has an order; they are declared as dictionaries, and are OrderedDicts.
    hooks: Any = module._forward_pre_hooks  # noqa: SLF001
    outputs: Any = module._forward_hooks  # noqa: SLF001
    if next(reversed(outputs), None) != second and not _is_last(second, outputs):
        outputs.move_to_end(second)
    if next(reversed(hooks), None) == first or _is_last(first, hooks):
        return True
    hooks.move_to_end(first)
    return False


def _idle(*_: Any) -> None:
    """What is left of our hooks on a copy."""


def _idle_hook() -> Callable[..., None]:
    return _idle


def _is_last(hook: int, hooks: dict[int, Any]) -> bool:
    """Whether all that comes after `hook` is ours."""
    for later in reversed(hooks):
        if later == hook:
            return True
        if later not in _ours:
            return False
    return True  # removed meanwhile


def _fall_silent() -> None:
    use_one_thread_after_fork()
    for recorder in list(_listening):
        recorder.fall_silent()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_fall_silent)
