"""Show the progress of long operations on a terminal."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from filch.steal import Phase, watch_phases
from filch.steal.text._visible import short_line

_BAR = 12  # characters


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Show the phases inside the `with` block, if standard error is a terminal."""
    console = Console(file=sys.stderr)  # this file, also where the export redirects standard error
    if quiet or not console.is_terminal or not sys.stderr.isatty():  # rich takes a file for one with FORCE_COLOR
        yield
        return
    display = PhaseDisplay(title)
    live = Live(get_renderable=display.table, console=console, transient=True, refresh_per_second=8)
    with live, watch_phases(display.update):
        yield


class PhaseDisplay:
    """The phases in progress as a table: the title with the time so far, and below it a line for each phase."""

    def __init__(self, title: str) -> None:
        self._title, self._phases = title, tuple[Phase, ...]()
        self._spinner = Spinner("dots")
        self._started = time.monotonic()

    def update(self, phases: tuple[Phase, ...]) -> None:
        """Set the phases to show."""
        self._phases = phases

    def table(self) -> Table:
        """Return the table, which fits in the width of the terminal."""
        text = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        columns = (
            Column(width=1),
            text,
            Column(width=_BAR),
            Column(min_width=len("0:00:00 left"), justify="right", no_wrap=True),
        )
        table = Table(*columns, box=None, expand=True, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_row(self._spinner, self._title, "", _duration(time.monotonic() - self._started))
        phases = self._phases
        for phase in (*(outer for outer in phases[:-1] if outer.total > 1), *phases[-1:]):
            bar = ProgressBar(total=1.0, completed=phase.done, width=_BAR) if phase.total else ""
            left = phase.seconds_left()
            table.add_row("", Text(short_line(str(phase))), bar, "" if left is None else f"{_duration(left)} left")
        return table


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
