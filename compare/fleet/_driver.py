"""Run the cells of a fleet on an executor, each once, and write a row for each into the ledger."""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from filch.steal import phase

from ..results._cells import Cell, LedgerRow
from ._cell import CellSpec, local_device
from ._ledger import Ledger, row_of

_RETRIES = 3  # of a cell that was lost
_POLL = 0.05  # seconds
_NO_SLOTS_LIMIT = 120.0  # seconds without a slot or a running cell, after which the waiting ones are lost


class Executor(Protocol):
    """Runs cells somewhere else. What `submit` returns identifies a cell to `poll` and `cancel`."""

    @property
    def place(self) -> str:
        """The kind of machine on which cells run; `""` if it is like this one. It is a part of the key of a cell."""
        ...

    @property
    def slots(self) -> int:
        """The number of cells that can run at the same time; it may change when nodes come and go."""
        ...

    def submit(self, cell: Mapping[str, Any], *, timeout: float | None, gpu: bool) -> Any:
        """Start a cell (see `CellSpec.to_dict`), on a GPU if it needs one."""
        ...

    def poll(self, handle: Any) -> Mapping[str, Any] | None:
        """Return the outcome as `run_worker` does, or the status `lost` and a detail; None while it runs."""
        ...

    def cancel(self, handle: Any) -> None:
        """End a cell that is running."""
        ...

    def close(self) -> None:
        """Release what the executor holds."""
        ...


@dataclass(frozen=True)
class _Attempt:
    """One run of a cell by its key; the number counts from 1, and is larger if the cell was lost before."""

    key: str
    number: int


def run_fleet(
    specs: Sequence[CellSpec],
    executor: Executor,
    ledger: Ledger,
    *,
    timeout: float | None = None,
    again: Collection[str] = (),
    labels: Callable[[CellSpec], dict[str, str]] = lambda spec: spec.labels,
) -> list[Cell]:
    """Run each cell that the ledger does not have, and return the outcomes of all.

    An exception, such as that of Ctrl-C, ends the cells that are running. Their rows are missing in the ledger, so that
    another call runs them and those that had not begun.

    Args:
        specs: the cells. Of equal ones, one runs.
        executor: where they run.
        ledger: the rows of cells that have ended; a row for each cell of this call is added.
        timeout: the time limit of a cell in seconds, from the end of the worker's imports; None is no limit.
        again: the statuses of cells in the ledger that run again.
        labels: makes the labels of an outcome.

    Returns:
        an outcome for each of `specs`, in order.
    """
    device = executor.place or local_device()
    keys = [spec.key(device) for spec in specs]
    specs_by_key = dict(zip(keys, specs, strict=True))
    known = (key for key in specs_by_key if key in ledger.rows and ledger.rows[key].status not in again)
    resumed = dict.fromkeys(known)
    ledger.reuse(resumed)
    waiting = deque(_Attempt(key, 1) for key in specs_by_key if key not in resumed)
    _run(waiting, _Fleet(specs_by_key, executor, ledger, timeout))
    return [
        _cell(ledger.rows[key], labels(spec), resumed=key in resumed) for key, spec in zip(keys, specs, strict=True)
    ]


@dataclass(frozen=True)
class _Fleet:
    specs: Mapping[str, CellSpec]
    executor: Executor
    ledger: Ledger
    timeout: float | None

    def submit(self, attempt: _Attempt) -> Any:
        spec = self.specs[attempt.key]
        return self.executor.submit(spec.to_dict(), timeout=self.timeout, gpu=spec.needs_gpu)

    def row(self, attempt: _Attempt, outcome: Mapping[str, Any]) -> LedgerRow:
        labels = self.specs[attempt.key].labels
        return row_of(attempt.key, labels, outcome, run=self.ledger.run, attempt=attempt.number)


def _run(waiting: deque[_Attempt], fleet: _Fleet) -> None:
    """Run attempts until each cell has a row in the ledger; after an exception, cancel those that are running."""
    if not waiting:
        return
    running: dict[_Attempt, Any] = {}
    ended: Counter[str] = Counter()
    had_slots = time.monotonic()
    with phase("cell", len(waiting)) as progress:
        progress.next("starting")
        try:
            while waiting or running:
                slots = fleet.executor.slots
                while waiting and len(running) < slots:
                    attempt = waiting.popleft()
                    running[attempt] = fleet.submit(attempt)
                had_slots = time.monotonic() if slots or running else had_slots
                outcomes = _poll(running, fleet.executor)
                if time.monotonic() - had_slots > _NO_SLOTS_LIMIT:
                    outcomes = [(attempt, _NO_SLOTS) for attempt in waiting]
                    waiting.clear()
                for attempt, outcome in outcomes:
                    if outcome["status"] == "lost" and attempt.number <= _RETRIES and outcome is not _NO_SLOTS:
                        waiting.append(_Attempt(attempt.key, attempt.number + 1))
                        continue
                    fleet.ledger.add(fleet.row(attempt, outcome))
                    ended[outcome["status"]] += 1
                    if waiting or running:
                        progress.next(_summary(ended, len(running)))
                if not outcomes:
                    time.sleep(_POLL)
        finally:
            for handle in running.values():
                fleet.executor.cancel(handle)


_NO_SLOTS: Mapping[str, Any] = {"status": "lost", "detail": "the executor has no node left to run it"}


def _poll(running: dict[_Attempt, Any], executor: Executor) -> list[tuple[_Attempt, Mapping[str, Any]]]:
    """Remove the attempts that have ended, and return them with their outcomes."""
    polled = [(attempt, executor.poll(handle)) for attempt, handle in running.items()]
    ended = [(attempt, outcome) for attempt, outcome in polled if outcome is not None]
    for attempt, _ in ended:
        del running[attempt]
    return ended


def _summary(ended: Counter[str], running: int) -> str:
    return ", ".join([f"{running} running", *(f"{count} {status}" for status, count in ended.items())])


def _cell(row: LedgerRow, labels: dict[str, str], *, resumed: bool) -> Cell:
    return Cell(labels, row.status, row.error, row.detail, row.blame, resumed, row.gaps)
