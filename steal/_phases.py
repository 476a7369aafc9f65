"""Report the phases of long work, with names and counts, to whoever watches."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_log = logging.getLogger("filch")
_MIN_DONE = 0.05  # of the work, before which there is no estimate of the time


class Phase:
    """A phase of long work, in which items may be counted.

    Args:
        name: see the attribute.
        total: see the attribute.
        work: the work of all items together, in the unit of that of `next`.
        on_change: called whenever `done` changes; None if nobody watches.

    Attributes:
        name: what is done, or what the items are.
        total: the number of items; 0 if nothing is counted.
        count: the number of the item in progress, from 1; 0 before the first.
        item: the description of that item, or `""`.
        done: the part of the work that is done, from 0 to 1.
    """

    def __init__(self, name: str, total: int, work: float, on_change: Callable[[], None] | None) -> None:
        self.name, self.total = name, total
        self.count = 0
        self.item = ""
        self.done = 0.0
        self._work, self._finished, self._in_progress = work, 0.0, 0.0
        self._on_change = on_change
        self._started = self._changed = time.monotonic()

    def next(self, item: str = "", work: float = 1.0) -> None:
        """Begin the next item, which ends the one before.

        Args:
            item: its description.
            work: its part of the phase's work.
        """
        self.count += 1
        if item:
            self.item = item
            if self.total:
                _log.debug("%s", self)
        if self._on_change is not None:  # else nobody watches, and `done` stays 0 until `end`
            self._finished += self._in_progress
            self._in_progress = work
            self._set_done(self._finished / self._work if self._work else 0.0)  # no work: nothing is counted

    def end(self) -> None:
        """End the last item: all are done."""
        self.count = self.total
        self._set_done(1.0)

    def seconds_left(self) -> float | None:
        """Return an estimate from the speed so far; None if little is done, or if the estimate has run out."""
        if self.done < _MIN_DONE:
            return None
        end = self._started + (self._changed - self._started) / self.done  # at the speed up to the last change
        left = end - time.monotonic()
        return left if left > 0 else None

    def __str__(self) -> str:
        text = f"{self.name} {self.count:,} of {self.total:,}" if self.total else self.name
        return f"{text}: {self.item}" if self.item else text

    def _set_done(self, done: float) -> None:
        self.done, self._changed = min(done, 1.0), time.monotonic()
        if self._on_change is not None:
            self._on_change()


Watcher = Callable[[tuple[Phase, ...]], None]
_watcher: ContextVar[tuple[Watcher, list[Phase]] | None] = ContextVar("filch_phases", default=None)


@contextmanager
def watch_phases(watcher: Watcher) -> Iterator[None]:
    """Call `watcher` at each change of a phase in the block, in this thread.

    Args:
        watcher: receives the phases in progress, the innermost last. It has to return quickly: large models have
            thousands of changes.
    """
    token = _watcher.set((watcher, []))
    try:
        yield
    finally:
        _watcher.reset(token)


def is_watched() -> bool:
    """Return whether phases are reported to a watcher."""
    return _watcher.get() is not None


@contextmanager
def phase(name: str, total: int = 0, *, work: float | None = None) -> Iterator[Phase]:
    """Report a phase to the watcher, and log its name with level DEBUG.

    Args:
        name: what is done; for items that are counted, what one of them is: `node` is shown as `node 2 of 12`.
        total: the number of items; 0 counts nothing.
        work: the work of all items together, in any unit; None is one for each.
    """
    _log.debug("%s", name)
    watched = _watcher.get()
    if watched is None:
        yield Phase(name, total, 0.0, None)
        return
    watcher, phases = watched
    current = Phase(name, total, total if work is None else work, lambda: watcher((*phases,)))
    phases.append(current)
    watcher((*phases,))
    try:
        yield current
        if total:
            current.end()
    finally:
        phases.remove(current)
        watcher((*phases,))
