"""Read ledgers: files of JSON lines with the outcomes of comparisons in many runs."""

import os
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from filch.steal.files._budget import Budget, LimitError
from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import open_untrusted, parse_json, read_lines
from filch.steal.text._visible import short_line

from ..common._errors import CompareError
from ..rendering._words import listed
from ..results._cells import VERSION, LedgerRow, ledger_row

_MAX_CELLS = 10_000
_SHOWN_LINES = 5
_RUN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def read_ledgers(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[LedgerRow], list[str]]:
    """Read ledgers of unknown origin.

    Args:
        paths: the files.

    Returns:
        the rows, ordered by run, with at most one row for each cell and run; and sentences about lines left out.

    Raises:
        CompareError: a file can't be read, is no ledger, is of another version, or is too large.
    """
    rows: list[LedgerRow] = []
    notes: list[str] = []
    budget = budget_of("ledger")
    for path in map(Path, paths):
        try:
            with open_untrusted(path) as file:
                rows += _rows(path, read_lines(file, budget), notes, budget)
        except OSError as error:
            raise CompareError(f"can't read the ledger {str(path)!r}: {error.strerror or error}") from error
        except LimitError as error:
            raise CompareError(f"can't read the ledgers up to {str(path)!r}: {error}") from error
    unique = _without_repeated(rows)
    if len({tuple(row.labels.items()) for row in unique}) > _MAX_CELLS:
        raise CompareError(f"the ledgers have more than {_MAX_CELLS:,} different cells")
    return unique, notes


def _rows(path: Path, lines: Iterable[bytes], notes: list[str], budget: Budget) -> list[LedgerRow]:
    """Return the rows of a ledger, and add sentences to `notes` about lines that are left out."""
    rows: list[LedgerRow] = []
    damaged: list[int] = []
    shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}  # most rows repeat the labels of an earlier row
    for number, line in enumerate(lines, 1):
        try:
            data = parse_json(line, memory=budget.kind.memory)
        except ValueError:
            if line.endswith(b"\n"):
                damaged.append(number)
            else:
                notes.append(f"The last line of {str(path)!r} is incomplete and was left out.")
            continue
        rows.append(_row(data, path, number, lambda items: shared.setdefault(tuple(items.items()), items)))
    if not rows:
        raise CompareError(f"{str(path)!r} has no rows of a ledger: `filch fleet` writes a ledger")
    if damaged:
        notes.append(f"Damaged lines of {str(path)!r} were left out: {listed(damaged, _SHOWN_LINES, ', …')}.")
    return rows


def _row(data: Any, path: Path, number: int, share: Callable[[dict[str, str]], Mapping[str, str]]) -> LedgerRow:
    """Return the row of a line; `share` returns an equal mapping of an earlier one."""
    if not isinstance(data, dict) or "filch_ledger" not in data:
        raise CompareError(f"{str(path)!r} is not a ledger: line {number} has no entry 'filch_ledger'")
    version = data["filch_ledger"]
    if type(version) is not int or version != VERSION:
        raise CompareError(
            f"{str(path)!r} is a ledger of version {reprlib.repr(version)}; this Filch reads version {VERSION}"
        )
    try:
        stored = ledger_row(data)
    except (KeyError, TypeError, ValueError) as error:
        reason = short_line(f"{type(error).__name__}: {error}")
        raise CompareError(f"the ledger {str(path)!r} is damaged in line {number}: {reason}") from error
    if not _RUN.fullmatch(stored.run):
        raise CompareError(
            f"the ledger {str(path)!r} is damaged in line {number}: row.run is {reprlib.repr(stored.run)}, "
            "not a time like '2026-11-24T20:31:05Z'"
        )
    environment = {name: text for name, text in stored.environment.items() if name != "time"}  # it explains nothing
    labels, known = (share(dict(sorted(items.items()))) for items in (stored.labels, environment))
    return replace(stored, labels=labels, environment=known)


def _without_repeated(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Return the valid row of each cell and run, ordered by run.

    The first row of a key is valid, unless its process was lost, as it is tried again. If a run was resumed after a
    change, its rows have another key, and the last key is valid.
    """
    by_key: dict[tuple[str, str], LedgerRow] = {}
    for row in rows:
        valid = by_key.get((row.run, row.key))
        if valid is None or valid.status == "lost":
            by_key[row.run, row.key] = row
    by_cell = {(row.run, *row.labels.items()): row for row in by_key.values()}
    return sorted(by_cell.values(), key=lambda row: row.run)
