"""Shows on a terminal how far long work is."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from filch.steal.text import named

log = logging.getLogger("filch")


def step(text: str, done: int, total: int) -> None:
    """Say that `done` of `total` steps are done, and what comes next; silent unless somebody listens."""
    log.debug(text, extra={"filch_step": (done, total)})


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Show the steps that are taken inside of the block, if standard error is a terminal."""
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
        if (counted := getattr(record, "filch_step", None)) is not None:
            done, total = counted
            self._bar.update(
                self._task, description=named(f"{self._title}: {record.getMessage()}"), completed=done, total=total
            )
