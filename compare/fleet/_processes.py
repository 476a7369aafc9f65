"""Run cells as processes of this machine."""

import os
from collections.abc import Mapping
from typing import Any

from ._supervisor import WorkerProcess


class ProcessExecutor:
    """Runs cells as processes of this machine.

    Args:
        slots: the number of processes at a time, which share the processors.
    """

    place = ""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        # Threads of PyTorch that outnumber the processors wait for one another.
        threads = str(max(1, (os.cpu_count() or 1) // slots))
        self._environment = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": threads}

    @property
    def slots(self) -> int:
        """The number of processes at a time."""
        return self._slots

    def submit(self, cell: Mapping[str, Any], *, timeout: float | None, gpu: bool) -> WorkerProcess | None:
        """Start a process; None if this machine can't."""
        del gpu  # processes share the GPUs
        try:
            return WorkerProcess(cell, timeout, environment=self._environment)
        except OSError:  # no memory, or too many processes
            return None

    def poll(self, handle: WorkerProcess | None) -> Mapping[str, Any] | None:
        """Return the outcome of a process, or None while it is running."""
        return {"status": "lost", "detail": "no process could be started"} if handle is None else handle.poll()

    def cancel(self, handle: WorkerProcess | None) -> None:
        """End a process."""
        if handle is not None:
            handle.kill()

    def close(self) -> None:
        """Do nothing: processes end with their cells."""
