"""What a terminal shows while a command runs."""

import io
import sys
import time
from contextlib import redirect_stderr

import pytest
from rich.console import Console

from filch.compare.common._progress import PhaseDisplay, progress
from filch.steal import phase, watch_phases


class Terminal(io.StringIO):
    """A terminal that remembers what was written to it."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def xterm(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def _lines(display, width=80):
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(display.table())
    return captured.get().splitlines()


def _halfway(values):
    values.next(work=5.0)
    values._started -= 60.0  # noqa: SLF001  a minute ago
    values.next()


def test_a_terminal_of_80_columns_shows_the_cell_the_phase_and_the_time_left():
    """One line each, also if a name is longer than the terminal."""
    display = PhaseDisplay("matrix")
    model = "my_models.py:a_model_with_a_name_that_is_longer_than_a_line_of_the_terminal"
    with watch_phases(display.update), phase("cell", 12) as cells:
        cells.next(f"{model} float16 openvino")
        with phase("call", 1) as calls:
            calls.next()
            with phase("compiled graph: value", 1_400, work=10.0) as values:
                _halfway(values)
                title, cell, value = _lines(display)

    assert title.split() == ["⠋", "matrix", "0:00:00"]
    assert cell.strip().startswith("cell 1 of 12: my_models.py:a_model") and "…" in cell
    assert value.strip().startswith("compiled graph: value 2 of 1,400")
    assert value.endswith("0:01:00 left")


@pytest.mark.parametrize("width", [40, 60, 100])
def test_no_line_is_longer_than_the_terminal(width):
    """Each phase has one line, and from 60 columns on its count and the time left are whole."""
    display = PhaseDisplay("matrix")
    with watch_phases(display.update), phase("compiled graph: value", 1_400, work=10.0) as values:
        _halfway(values)
        lines = _lines(display, width)

    assert len(lines) == 2
    assert max(map(len, lines)) <= width
    assert width < 60 or "compiled graph: value 2 of 1,400 " in lines[1]
    assert lines[1].endswith("0:01:00 left")


def test_a_name_from_a_model_can_not_control_the_terminal():
    """Neither by control characters nor by markup."""
    display = PhaseDisplay("check")
    with watch_phases(display.update), phase("[red]x\x1b[2J"):
        assert _lines(display)[1].strip() == "[red]x\\u001b[2J"


def test_a_terminal_is_shown_the_phases_and_left_clean(monkeypatch):
    """Also where the export redirects standard error; the lines are erased at the end."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("check"), redirect_stderr(io.StringIO()) as redirected, phase("exporting"):
        time.sleep(0.3)
    assert "check" in terminal.getvalue() and "exporting" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")
    assert not redirected.getvalue()


@pytest.mark.parametrize("quiet", [True, False])
def test_nothing_is_written_when_quiet_or_without_a_terminal(quiet, monkeypatch):
    """A file receives nothing, nor does a terminal with `--quiet`."""
    target = Terminal() if quiet else io.StringIO()
    monkeypatch.setattr(sys, "stderr", target)
    with progress("check", quiet=quiet), phase("value", 2) as values:
        values.next("first")
    assert not target.getvalue()
