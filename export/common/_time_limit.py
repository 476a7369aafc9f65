"""Limit the time of a backend's steps, and interrupt those that take too long."""

import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import onnx_ir as ir

from filch.steal import FilchError

from .._errors import BackendError
from ._weights import weight_bytes

T = TypeVar("T")
Stop = Callable[[], None]
COMPILING = 10.0  # factor of the limit for compiling
_DEFAULT = 60.0
_GRACE = 2.0  # seconds that a stopped run has to return
_STUCK = 10.0  # seconds that Python code has to react to the interruption; native code never does
_current: ContextVar["TimeLimit | None"] = ContextVar("filch_time_limit", default=None)
_on_stuck: ContextVar[Callable[[str], None] | None] = ContextVar("filch_on_stuck", default=None)


def default_limit(model: ir.Model) -> float:
    """Return the default limit for one run of a model: 60 seconds, and 60 more for each GB of weights."""
    return _DEFAULT * (1 + weight_bytes(model) / 1e9)


class _TimeIsUp(BaseException):
    """Raised in the thread that takes too long. A `BaseException`, so that `except Exception` does not catch it."""


@dataclass
class _TimedStep:
    """A step that is running under a time limit."""

    thread: int
    error: Callable[[], FilchError]  # returns the exception to raise
    started: float
    deadline: float
    outer: "_TimedStep | None"  # the enclosing step
    stops: list[Stop] = field(default_factory=list)  # see `stoppable`
    expired: float = 0.0  # the time at which it expired; 0 if it has not
    raised: bool = False  # whether `_TimeIsUp` was raised in the thread


class TimeLimit:
    """Limits the time of each step in the block, in this thread: a compilation, a run, the next of several values.

    A separate thread watches until the block ends. For a step that takes too long, it calls the functions passed to
    `stoppable`, then interrupts Python code with an exception. Native code without such a function can't be
    interrupted: its error is raised once it returns, or `end_process_if_stuck` ends the process.

    Args:
        seconds: the limit of one step; `math.inf` for no limit.

    Raises:
        BackendError: `seconds` is not a positive number.
    """

    def __init__(self, seconds: float) -> None:
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
            raise BackendError(f"a time limit is a number of seconds above 0, not {seconds!r}")
        self.seconds = float(seconds)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._step: _TimedStep | None = None
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        self._report_stuck = _on_stuck.get()
        if math.isfinite(self.seconds):
            self._watcher = threading.Thread(target=self._watch, name="filch-time-limit", daemon=True)
            self._watcher.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _current.reset(self._token)
        if self._watcher is not None:
            self._ended.set()
            self._watcher.join()
        if isinstance(error, _TimeIsUp):  # the interruption came after the step had ended
            raise BackendError(f"a backend took longer than its limit of {self.seconds:g} seconds") from None

    @contextmanager
    def step(self, error: Callable[[], FilchError], seconds: float) -> Iterator[None]:
        """Raise `error` if the block takes longer than `seconds`, as soon as the block can be interrupted."""
        now = time.monotonic()
        step = _TimedStep(threading.get_ident(), error, now, now + seconds, self._step)
        self._step = step
        problem: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            problem = caught
            raise
        finally:
            self._end_step(step, problem)

    def _end_step(self, step: _TimedStep, problem: BaseException | None) -> None:
        """Extend the outer step by the time of this one, and raise this step's error if it has expired."""
        with self._lock:
            self._step = step.outer
            if step.outer is not None:
                step.outer.deadline += time.monotonic() - step.started
            if step.raised:
                _deliver_interruption()
        # Another `BaseException`, such as `KeyboardInterrupt`, is raised instead.
        if step.expired and (problem is None or isinstance(problem, Exception | _TimeIsUp)):
            raise step.error() from None

    def _watch(self) -> None:
        """Stop steps that take too long, until the block ends; this is what the separate thread runs.

        A step that begins later also expires later than a wait that begins now, so the thread needs no wake-up.
        """
        wait = self.seconds
        while not self._ended.wait(min(wait, threading.TIMEOUT_MAX)):
            stuck: FilchError | None = None
            with self._lock:
                step, now = self._step, time.monotonic()
                wait = self.seconds if step is None else step.deadline - now
                if step is not None and wait <= 0:
                    stuck = self._expire(step, now)
                    wait = max(step.deadline - now, 0.01)
            if stuck is not None and self._report_stuck is not None:
                self._report_stuck(str(stuck))

    def _expire(self, step: _TimedStep, now: float) -> FilchError | None:
        """Try the next way to stop an expired step; return the step's error if none is left, else None.

        The new deadline is when the next way is tried.
        """
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


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an exception in another thread at its next Python instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _deliver_interruption() -> None:
    """Catch the interruption of this thread if it is still pending.

    Python looks for it at each backward jump. Cancelling it with `PyThreadState_SetAsyncExc(thread, NULL)` instead
    leaves Python 3.11 looking for it for ever, and a thread with a trace function (a debugger, coverage) hangs.
    """
    with suppress(_TimeIsUp):
        for _ in range(2):
            pass


def limited(
    what: str, doing: str, *, times: float = 1.0, error: type[FilchError] = BackendError
) -> AbstractContextManager[None]:
    """Limit the block by the enclosing `TimeLimit`, if there is one.

    Args:
        what: the subject of the error message, such as a backend's name.
        doing: the task in the error message, as in "to compile the program".
        times: a factor of the limit.
        error: the exception to raise if the block takes longer.
    """
    limit = _current.get()
    if limit is None:
        return nullcontext()
    seconds, more = limit.seconds * times, f"{10 * limit.seconds:g}"
    text = "{} took longer than {:g} seconds {}, its limit; limit={} (--limit {}) allows more"
    return limit.step(lambda: error(text.format(what, seconds, doing, more, more)), seconds)


def limited_steps(steps: Iterable[T], what: str, doing: str, *, error: type[FilchError] = BackendError) -> Iterator[T]:
    """Yield the items of `steps`. Computing each item is limited; the caller's work between items is not."""
    pending, end = iter(steps), object()
    while True:
        with limited(what, doing, error=error):
            item: Any = next(pending, end)
        if item is end:
            return
        yield item


@contextmanager
def stoppable(stop: Stop) -> Iterator[None]:
    """Call `stop`, in another thread, if the enclosing step expires during the block."""
    limit = _current.get()
    step = None if limit is None else limit._step  # noqa: SLF001  same module
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
    """End the process with exit status 2 and the error message if a step can't be stopped otherwise."""
    token = _on_stuck.set(_end_process)
    try:
        yield
    finally:
        _on_stuck.reset(token)


def _end_process(message: str) -> None:
    """Write a message to standard error and end the process at once."""
    sys.stderr.write(f"filch: {message}\n")
    sys.stderr.flush()
    os._exit(2)
