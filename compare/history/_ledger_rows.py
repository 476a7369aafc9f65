"""Read ledgers: files of JSON lines with the outcomes of comparisons in many runs."""

import os
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from filch.steal import parse_json, read_untrusted
from filch.steal.text import short_line

from ..common._errors import CompareError
from ..rendering._json import typed

VERSION = 1
Status = Literal["close", "different", "failed", "missing", "crashed", "timeout", "lost"]
_MAX_BYTES = 2**28  # of all ledgers together; a row has about 1,300
_MAX_ROWS = 2**18
_MAX_CELLS = 10_000
_LINE_MEMORY = 2**26  # bytes of one parsed line
_SHOWN_LINES = 5
_RUN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


@dataclass(frozen=True)
class Blame:
    """The first divergence of a comparison.

    Attributes:
        value: the name of the value.
        module: the path of the module that computes it.
        operator: the operator that computes it.
        times_rounding: its distance from float64 as a multiple of its rounding error; None if it is not known.
    """

    value: str | None
    module: str | None
    operator: str | None
    times_rounding: float | None

    @property
    def place(self) -> str:
        """The operator and the module; `""` if neither is known."""
        return " in ".join(filter(None, (self.operator, self.module)))

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.place, f"value {self.value}" if self.value else "")))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell in one run.

    Attributes:
        run: the start of the run in UTC, as ISO 8601.
        key: the hash of everything that determines the result, versions included.
        status: `close`, `different`, `failed` (it could not be compared), or why it did not run: `missing` (the backend
            or device is not available), `crashed`, `timeout` or `lost` (its process disappeared).
        error: the largest harmonic error; None if no value was judged.
        detail: the first divergence, or why it could not be compared.
        blame: the first divergence; None if there is none.
    """

    run: str
    key: str
    status: Status
    error: float | None
    detail: str
    blame: Blame | None


@dataclass(frozen=True)
class CellRun:
    """A line of a ledger.

    Attributes:
        labels: the model, backend, dtype, sizes … of the cell, by their titles; the same in all runs.
        outcome: the outcome of the cell.
        environment: the versions, processor and settings of the run; empty if they were not recorded.
    """

    labels: Mapping[str, str]
    outcome: Outcome
    environment: Mapping[str, str] = field(repr=False)


def read_ledgers(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[CellRun], list[str]]:
    """Read ledgers of unknown origin.

    Args:
        paths: the files.

    Returns:
        the rows, ordered by run, with at most one row for each cell and run; and sentences about lines left out.

    Raises:
        CompareError: a file can't be read, is no ledger, is of another version, or is too large.
    """
    rows: list[CellRun] = []
    notes: list[str] = []
    left = _MAX_BYTES
    for path in map(Path, paths):
        contents = _contents(path, left)
        left -= len(contents)
        rows += _rows(path, contents, notes, _MAX_ROWS - len(rows))
    unique = _without_repeated(rows)
    if len({tuple(row.labels.items()) for row in unique}) > _MAX_CELLS:
        raise CompareError(f"the ledgers have more than {_MAX_CELLS:,} different cells")
    return unique, notes


def _contents(path: Path, limit: int) -> bytes:
    try:
        return read_untrusted(path, limit)
    except OSError as error:
        raise CompareError(f"can't read the ledger {str(path)!r}: {error.strerror or error}") from error


def _rows(path: Path, contents: bytes, notes: list[str], most: int) -> list[CellRun]:
    rows: list[CellRun] = []
    damaged: list[int] = []
    shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}  # most rows repeat those of an earlier row
    for number, line in enumerate(BytesIO(contents), 1):
        try:
            data = parse_json(line, memory=_LINE_MEMORY)
        except ValueError:
            if line.endswith(b"\n"):
                damaged.append(number)
            else:
                notes.append(f"The last line of {str(path)!r} is incomplete and was left out.")
            continue
        if len(rows) == most:
            raise CompareError(f"the ledgers have more than {_MAX_ROWS:,} rows")
        row = _row(data, path, number)
        labels, environment = (
            shared.setdefault(tuple(items.items()), items) for items in (row.labels, row.environment)
        )
        rows.append(CellRun(labels, row.outcome, environment))
    if not rows:
        raise CompareError(f"{str(path)!r} has no rows of a ledger: `filch fleet` writes a ledger")
    if damaged:
        numbers = ", ".join(map(str, damaged[:_SHOWN_LINES])) + (", …" if len(damaged) > _SHOWN_LINES else "")
        notes.append(f"Damaged lines of {str(path)!r} were left out: {numbers}.")
    return rows


def _row(data: Any, path: Path, number: int) -> CellRun:
    if not isinstance(data, dict) or "filch_ledger" not in data:
        raise CompareError(f"{str(path)!r} is not a ledger: line {number} has no entry 'filch_ledger'")
    version = data["filch_ledger"]
    if type(version) is not int or version != VERSION:
        raise CompareError(
            f"{str(path)!r} is a ledger of version {reprlib.repr(version)}; this Filch reads version {VERSION}"
        )
    try:
        outcome = typed(Outcome, data, "row")
        labels, environment = (
            dict(sorted(typed(Mapping[str, str], data[name] or {}, f"row.{name}").items()))
            for name in ("labels", "environment")
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = short_line(f"{type(error).__name__}: {error}")
        raise CompareError(f"the ledger {str(path)!r} is damaged in line {number}: {reason}") from error
    if not _RUN.fullmatch(outcome.run):
        raise CompareError(
            f"the ledger {str(path)!r} is damaged in line {number}: row.run is {reprlib.repr(outcome.run)}, "
            "not a time like '2026-11-24T20:31:05Z'"
        )
    environment.pop("time", None)  # it differs in each run and explains nothing
    return CellRun(labels, outcome, environment)


def _without_repeated(rows: Iterable[CellRun]) -> list[CellRun]:
    """Return the valid row of each cell and run, ordered by run.

    The first row of a key is valid, unless its process was lost, as it is tried again. If a run was resumed after a
    change, its rows have another key, and the last key is valid.
    """
    by_key: dict[tuple[str, str], CellRun] = {}
    for row in rows:
        place = row.outcome.run, row.outcome.key
        if place not in by_key or by_key[place].outcome.status == "lost":
            by_key[place] = row
    by_cell = {(row.outcome.run, *row.labels.items()): row for row in by_key.values()}
    return sorted(by_cell.values(), key=lambda row: row.outcome.run)
