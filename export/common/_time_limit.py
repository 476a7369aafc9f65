"""Ends what a backend does once it takes longer than it may."""

import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import onnx_ir as ir

from filch.steal import FilchError

from .._errors import BackendError

T = TypeVar("T")
Stop = Callable[[], None]
COMPILING = 10.0  # compiling may take that many times as long as running
_USUAL = 60.0
_GRACE = 2.0  # seconds for a stopped run to return
_STUCK = 10.0  # seconds for Python code to be interrupted; native code never is
_current: ContextVar["TimeLimit | None"] = ContextVar("filch_time_limit", default=None)
_on_stuck: ContextVar[Callable[[str], None] | None] = ContextVar("filch_on_stuck", default=None)


def default_limit(model: ir.Model) -> float:
    """The seconds that running a model once may take: 60, and 60 more for each GB of weights."""
    held = (value.const_value for value in model.graph.initializers.values())
    return _USUAL * (1 + sum(tensor.nbytes for tensor in held if tensor is not None) / 1e9)


class _TimeIsUp(BaseException):
    """Raised in the thread that takes too long; no `except Exception` on its way catches it."""


@dataclass
class _Step:
    """Something that is limited, and is being done."""

    thread: int
    error: Callable[[], FilchError]
    started: float
    deadline: float
    outer: "_Step | None"
    stops: list[Stop] = field(default_factory=list)
    expired: float = 0.0  # when it was
    raised: bool = False


class TimeLimit:
    """Limits each step that is made `within` it, in this thread: a compilation, a run, the next of several values.

    A thread of its own watches; it ends with the block. Of a step that takes too long, what `stoppable` was told is
    called; Python code is interrupted by an exception. Native code that is neither can't be ended: its error is raised
    once it returns, or `end_process_if_stuck` ends the process.

    Args:
        seconds: for one step; `math.inf` is no limit.

    Raises:
        BackendError: it is not a positive number.
    """

    def __init__(self, seconds: float) -> None:
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
            raise BackendError(f"a time limit is a number of seconds above 0, not {seconds!r}")
        self.seconds = float(seconds)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._step: _Step | None = None
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        self._stuck = _on_stuck.get()
        if math.isfinite(self.seconds):
            self._watcher = threading.Thread(target=self._watch, name="filch-time-limit", daemon=True)
            self._watcher.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _current.reset(self._token)
        if self._watcher is not None:
            self._over.set()
            self._watcher.join()
        if isinstance(error, _TimeIsUp):  # it was interrupted on its way out of the step
            raise BackendError(f"a backend took longer than its limit of {self.seconds:g} seconds") from None

    @contextmanager
    def step(self, error: Callable[[], FilchError], seconds: float) -> Iterator[None]:
        """Raise `error` if the block takes longer than `seconds`, as soon as it can be stopped."""
        now = time.monotonic()
        step = _Step(threading.get_ident(), error, now, now + seconds, self._step)
        self._step = step
        problem: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            problem = caught
            raise
        finally:
            self._leave(step, problem)

    def _leave(self, step: _Step, problem: BaseException | None) -> None:
        with self._lock:
            self._step = step.outer
            if step.outer is not None:
                step.outer.deadline += time.monotonic() - step.started
            if step.raised:
                _raise_in(step.thread, None)
        if step.expired and (problem is None or isinstance(problem, Exception | _TimeIsUp)):
            raise step.error() from None

    def _watch(self) -> None:
        # A step that begins later ends later than a wait that begins now: nobody has to wake this thread.
        wait = self.seconds
        while not self._over.wait(min(wait, threading.TIMEOUT_MAX)):
            stuck: FilchError | None = None
            with self._lock:
                step, now = self._step, time.monotonic()
                wait = self.seconds if step is None else step.deadline - now
                if step is not None and wait <= 0:
                    stuck = self._expire(step, now)
                    wait = max(step.deadline - now, 0.01)
            if stuck is not None and self._stuck is not None:
                self._stuck(str(stuck))

    def _expire(self, step: _Step, now: float) -> FilchError | None:
        """Stop a step whose time is up, by the next means; its error if there is none left."""
        step.expired = step.expired or now
        if step.stops:
            for stop in step.stops:
                stop()
            step.stops.clear()
            step.deadline = now + _GRACE
            return None
        if now - step.expired > _STUCK:
            step.deadline = math.inf
            return step.error()
        _raise_in(step.thread, _TimeIsUp)
        step.raised = True
        step.deadline = now + _STUCK / 2
        return None


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in another thread at its next Python instruction; None takes back what was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )


@contextmanager
def limited(what: str, doing: str, *, times: float = 1.0, error: type[FilchError] = BackendError) -> Iterator[None]:
    """Limit the block by the `TimeLimit` that is in force, if there is one.

    Args:
        what: what does it: a backend's name.
        doing: what it does, as in "to compile the program".
        times: how many times as long this may take.
        error: what is raised if it takes longer.
    """
    limit = _current.get()
    if limit is None:
        yield
        return
    seconds = limit.seconds * times
    more = f"{10 * limit.seconds:g}"
    text = f"{what} took longer than {seconds:g} seconds {doing}, its limit; limit={more} (--limit {more}) allows more"
    with limit.step(lambda: error(text), seconds):
        yield


def limited_steps(steps: Iterable[T], what: str, doing: str, *, error: type[FilchError] = BackendError) -> Iterator[T]:
    """The items of `steps`; making each one is limited, what is done with it in between is not."""
    pending, end = iter(steps), object()
    while True:
        with limited(what, doing, error=error):
            item: Any = next(pending, end)
        if item is end:
            return
        yield item


@contextmanager
def stoppable(stop: Stop) -> Iterator[None]:
    """Have `stop` called, in another thread, when the time of the step that this block is in is up."""
    limit = _current.get()
    step = None if limit is None else limit._step  # noqa: SLF001  its own
    if step is None:
        yield
        return
    step.stops.append(stop)
    try:
        yield
    finally:
        if stop in step.stops:
            step.stops.remove(stop)


@contextmanager
def end_process_if_stuck() -> Iterator[None]:
    """End the process, with exit status 2 and the error's sentence, for a step that can't be stopped otherwise."""
    token = _on_stuck.set(_end_process)
    try:
        yield
    finally:
        _on_stuck.reset(token)


def _end_process(sentence: str) -> None:
    sys.stderr.write(f"filch: {sentence}\n")
    sys.stderr.flush()
    os._exit(2)
