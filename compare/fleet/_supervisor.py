"""Run one cell in a process of its own, with a time limit; whatever happens to the process is an outcome.

Nothing but Python's own library is imported, as this also runs in jobs of a cluster, next to each worker.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORK, READY, OUTCOME = "work.json", "ready.json", "outcome.json"  # the files that a worker reads and writes
_START_LIMIT = 900.0  # seconds for the imports, which may be slow on a network file system
_POLL = 0.05  # seconds
_GRACE = 1.0  # seconds in which a worker tells where it hangs
_TEARDOWN = 5.0  # seconds in which a node that goes down also ends the supervisors of the processes that it killed
_ENDED_BY_OTHERS = ("SIGTERM", "SIGINT", "SIGHUP")  # sent by schedulers and nodes that go down, not by crashes
_LOG = 2**16  # bytes of what a worker printed last, in which a stack is found
_FRAME = re.compile(r'most recent call first\):\s+File "(.+?)", line (\d+) in (.+)')


class WorkerProcess:
    """A process that runs one cell.

    Args:
        cell: the cell; see `CellSpec.to_dict`.
        timeout: the time limit in seconds, from the end of the imports; None is no limit.
        environment: environment variables that the process has in addition.
    """

    def __init__(
        self, cell: Mapping[str, Any], timeout: float | None, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._path = Path(tempfile.mkdtemp(prefix="filch-cell-"))
        self._timeout = timeout
        self._started, self._ready = time.monotonic(), 0.0  # 0 until the worker has imported everything
        try:
            self._path.joinpath(WORK).write_text(json.dumps(cell), encoding="utf-8")
            self._process = self._start({**os.environ, **(environment or {})})
        except BaseException:
            self._remove()
            raise

    def _start(self, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        with self._path.joinpath("log").open("wb") as log:
            # The worker ends when its standard input is closed, thus also if this process is killed. The group of its
            # own lets its children be ended with it, and keeps Ctrl-C from it.
            return subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-m", "filch.compare.fleet._worker", str(self._path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def poll(self) -> dict[str, Any] | None:
        """Return the outcome, as JSON types; None while the cell is running."""
        code = self._process.poll()
        if not self._ready and self._path.joinpath(READY).exists():
            self._ready = time.monotonic()
        if code is not None:
            return self._end(self._outcome(code))
        if not self._ready and time.monotonic() - self._started > _START_LIMIT:
            return self._end({"status": "lost", "detail": f"the worker did not start within {_START_LIMIT:.0f} s"})
        if self._ready and self._timeout is not None and time.monotonic() - self._ready > self._timeout:
            return self._end({"status": "timeout", "detail": f"it took more than {self._timeout:g} s{self._where()}"})
        return None

    def kill(self) -> None:
        """End the process and its children, and remove its files."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def _outcome(self, code: int) -> dict[str, Any]:
        """Return the outcome of a process that has ended; the exit code is minus the signal if one killed it."""
        outcome = self._path / OUTCOME
        if outcome.exists():  # also if the process died after it had written it
            written: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
            return written
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        if code < 0 and _signal_name(-code) in _ENDED_BY_OTHERS:
            return {"status": "lost", "detail": f"the process {how}, as by a scheduler or a node that goes down"}
        if self._ready:
            return {"status": "crashed", "detail": f"the process {how}{self._frame()}"}
        last = (self._log().strip().splitlines() or ["it printed nothing"])[-1]
        return {"status": "crashed", "detail": f"the worker {how} before it was ready: {last}"}

    def _end(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """End the process, and return the outcome with the environment and the seconds, unless it has its own."""
        ready = self._path / READY
        environment = json.loads(ready.read_text(encoding="utf-8")) if ready.exists() else {}
        seconds = round(time.monotonic() - self._ready, 3) if self._ready else 0.0
        self.kill()
        return {"environment": environment, "seconds": seconds, **outcome}

    def _where(self) -> str:
        """Return where the process hangs, as `_frame` does; `""` if it can't tell."""
        if not hasattr(signal, "SIGUSR1"):
            return ""
        self._process.send_signal(signal.SIGUSR1)  # the worker's faulthandler prints the stack
        deadline = time.monotonic() + _GRACE
        while not (frame := self._frame()) and time.monotonic() < deadline:
            time.sleep(_POLL)
        return frame

    def _frame(self) -> str:
        """Return the innermost Python frame that `faulthandler` printed last; `""` if there is none."""
        frames = _FRAME.findall(self._log())
        return f", in {Path(frames[-1][0]).name}:{frames[-1][1]} ({frames[-1][2]})" if frames else ""

    def _log(self) -> str:
        with self._path.joinpath("log").open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG))
            return log.read().decode("utf-8", "replace")


def run_worker(cell: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
    """Run a cell in a process of its own, wait for it, and return the outcome as JSON types.

    A node that goes down may kill the worker before this process: the cell is then lost and has not crashed, so a crash
    is reported only after a pause.
    """
    process = WorkerProcess(cell, timeout)
    try:
        while (outcome := process.poll()) is None:
            time.sleep(_POLL)
    except BaseException:
        process.kill()
        raise
    if outcome["status"] == "crashed":
        time.sleep(_TEARDOWN)
    return outcome


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
