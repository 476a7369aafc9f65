"""Show the progress of long operations on a terminal."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from filch.steal.text import short_line

log = logging.getLogger("filch")


def step(text: str, done: int, total: int) -> None:
    """Report to an active `progress` that `done` of `total` steps are complete, and what the next one is."""
    log.debug(text, extra={"filch_step": (done, total)})


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Show a progress bar of the steps reported inside the `with` block, if standard error is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal or not sys.stderr.isatty():
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    level = log.level
    with Progress(*columns, console=console, transient=True) as bar:
        handler = _Bar(bar, title)
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)


class _Bar(logging.Handler):
    def __init__(self, bar: Progress, title: str) -> None:
        super().__init__(logging.DEBUG)
        self._bar = bar
        self._title = title
        self._task = bar.add_task(title, total=None)

    def emit(self, record: logging.LogRecord) -> None:
        if (counts := getattr(record, "filch_step", None)) is not None:
            done, total = counts
            self._bar.update(
                self._task, description=short_line(f"{self._title}: {record.getMessage()}"), completed=done, total=total
            )
