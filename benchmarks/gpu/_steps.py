"""Run steps in subprocesses with time limits: a step that fails, hangs or crashes does not end the run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SKIPPED = 77  # exit status of a step that needs something that is missing; the last line of its output is the reason
MIN_SECONDS = 3.0  # with less time left, a step is not started
KILL_SECONDS = 10.0  # how long to wait for a killed process, which may hang in the driver

Status = Literal["passed", "failed", "skipped", "not run"]


@dataclass(frozen=True)
class Step:
    """A command to run.

    Attributes:
        title: what it measures or tests.
        command: the program and its arguments.
        limit: the seconds that it may take.
        environment: variables in addition to those of this process.
        folder: the working directory; None is that of this process.
    """

    title: str
    command: tuple[str, ...]
    limit: float
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True)
class Result:
    """What became of a step.

    Attributes:
        title: that of the step.
        status: `not run` means that no time was left.
        reason: why it failed or was not run, in one line; empty if it passed.
        seconds: how long it took.
        output: its standard output.
        errors: its standard error.
    """

    title: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    output: str = ""
    errors: str = ""


class Budget:
    """The seconds that are left of a total."""

    def __init__(self, seconds: float) -> None:
        """Start the clock."""
        self.total = seconds
        self._start = time.monotonic()

    @property
    def used(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Return the seconds that are left of the total."""
        return self.total - self.used


def run_step(step: Step, left: float) -> Result:
    """Run a step in a new process group, for at most `left` seconds and its own limit; kill the group after that.

    The output goes to files: a grandchild that survives can't keep a pipe open.
    """
    limit = min(step.limit, left)
    if limit < MIN_SECONDS:
        return Result(step.title, "not run", "no time was left")
    with tempfile.TemporaryDirectory(prefix="filch-gpu-") as name:
        paths = Path(name) / "output", Path(name) / "errors"
        start = time.monotonic()
        code, problem = _run(step, limit, *paths)
        seconds = time.monotonic() - start
        output, errors = (path.read_text("utf-8", "replace") if path.exists() else "" for path in paths)
    status, reason = _outcome(code, problem, output, errors)
    return Result(step.title, status, reason, seconds, output, errors)


def _run(step: Step, limit: float, output: Path, errors: Path) -> tuple[int | None, str]:
    """Return the exit status (None if there is none), and why there is none."""
    environment = {**os.environ, **step.environment}
    with output.open("wb") as out, errors.open("wb") as err:
        try:
            process = subprocess.Popen(
                step.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=step.folder, env=environment,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return None, f"can't start {step.command[0]}: {error.strerror}"
        try:
            return process.wait(limit), ""
        except subprocess.TimeoutExpired:
            return None, f"not finished after {limit:.0f} s{_kill(process)}"
        except BaseException:
            _kill(process)
            raise


def _kill(process: subprocess.Popen[bytes]) -> str:
    """Kill a process and its children; return a remark if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return f", and process {process.pid} can't be killed"
    return ""


def _outcome(code: int | None, problem: str, output: str, errors: str) -> tuple[Status, str]:
    if code is None:
        return "failed", problem
    if code == 0:
        return "passed", ""
    if code == SKIPPED:
        return "skipped", last_line(output) or last_line(errors) or "no reason given"
    if code < 0:
        return "failed", f"killed by signal {-code} ({_signal_name(-code)})"
    return "failed", last_line(errors) or last_line(output) or f"exit status {code}, and no message"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def last_line(text: str) -> str:
    """Return the last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
