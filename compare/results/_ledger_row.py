"""A row of a ledger: the outcome of one comparison in one run, which `filch fleet` writes and `filch history` reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..rendering._json import typed
from ._cells import CellStatus, Divergence

VERSION = 1
_OPTIONAL: Mapping[str, Any] = {"time": "", "seconds": 0.0, "attempt": 1, "reused": None, "gaps": []}  # may be missing


@dataclass(frozen=True)
class LedgerRow:
    """The outcome of a cell in a run.

    Attributes:
        filch_ledger: the version of the format.
        key: the content address of the cell; see `CellSpec.key`.
        run: when the run was started: UTC, ISO 8601.
        time: when the cell ended, likewise.
        seconds: how long it took, from the end of its imports.
        labels: its model, backend, dtype, device and sizes (`dim:batch`); the same in all runs.
        status: see `Cell`.
        error: the largest harmonic error; None if no value was judged.
        detail: see `Cell`.
        blame: the place of the first divergence; None if no value differs.
        attempt: 1, or more if earlier attempts were lost.
        reused: the run whose result this run has reused, as nothing has changed since; None if it compared the cell.
        gaps: see `Cell`.
        environment: versions, processor and settings of the worker (see `filch.steal.environment`); empty if they were
            not recorded.
    """

    filch_ledger: int
    key: str
    run: str
    time: str
    seconds: float
    labels: Mapping[str, str]
    status: CellStatus
    error: float | None
    detail: str
    blame: Divergence | None
    attempt: int
    reused: str | None
    gaps: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)


def ledger_row(data: Mapping[str, Any]) -> LedgerRow:
    """Return a row from its entries, as JSON types.

    Raises:
        KeyError: one is missing.
        TypeError: one has another type.
    """
    row: LedgerRow = typed(LedgerRow, {**_OPTIONAL, **data, "environment": data["environment"] or {}}, "row")
    return row
