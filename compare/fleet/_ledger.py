"""The ledger of a fleet: a file of JSON lines, one for each cell that has ended."""

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filch.steal.files._budget import LimitError
from filch.steal.files._kinds import budget_of
from filch.steal.files._outputs import free_space, write_problem
from filch.steal.files._untrusted import open_descriptor, open_untrusted, parse_json, read_lines

from ..common._cut_short import is_cut_short
from ..common._errors import CompareError
from ..rendering._json import plain
from ..results._cells import VERSION, LedgerRow, ledger_row

try:
    import fcntl
except ImportError:  # on Windows, nothing keeps two fleets from writing to one ledger
    fcntl = None  # type: ignore[assignment]

_SAME_SECOND = 0.1  # seconds
_log = logging.getLogger("filch")


class Ledger:
    """The rows of cells that have ended, in memory and in a file; a context manager that closes the file.

    Only one process at a time writes to a ledger. Rows are appended by one write and then synchronized, so that a
    kill can cut short at most the last line, which the next process removes.

    Args:
        path: the file; None keeps the rows only in memory.

    Attributes:
        run: the time at which this was made, which identifies its rows.
        rows: the rows that the file held already and those that were added, by the key of the cell. Of several rows of
            one cell, that of the latest run counts.

    Raises:
        CompareError: the file is not a ledger, can't be read or written, or another process writes to it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._file = path, -1  # no file is open
        self.run = now()
        self.rows: dict[str, LedgerRow] = {}
        if path is None:
            return
        try:
            self._file = _opened(path)
            _lock(self._file)
            complete = self._read(path)
            while any(row.run == self.run for row in self.rows.values()):  # started within one second
                time.sleep(_SAME_SECOND)
                self.run = now()
            if complete < os.fstat(self._file).st_size:
                _log.warning("the last line of the ledger %r is incomplete and is removed", str(path))
                os.ftruncate(self._file, complete)
        except BlockingIOError:
            self.close()
            raise CompareError(f"another fleet is writing to the ledger {str(path)!r}") from None
        except OSError as error:
            self.close()
            raise CompareError(f"can't use the ledger {str(path)!r}: {error.strerror or error}") from error
        except LimitError as error:
            self.close()
            raise CompareError(f"can't use the ledger {str(path)!r}: {error}; start another one") from error
        except CompareError:
            self.close()
            raise

    def add(self, *rows: LedgerRow) -> None:
        """Append rows."""
        self.rows |= {row.key: row for row in rows}
        if self._file < 0 or not rows:
            return
        lines, before = "".join(f"{json.dumps(plain(row))}\n" for row in rows).encode(), os.fstat(self._file).st_size
        try:
            is_whole = os.write(self._file, lines) == len(lines)  # a full disk takes a part of them
            if not is_whole:
                os.ftruncate(self._file, before)
            os.fsync(self._file)
        except OSError as error:
            problem = write_problem(error, self._path)
            raise CompareError(f"can't write the ledger {str(self._path)!r}: {problem}") from error
        if not is_whole:
            raise CompareError(f"the disk of the ledger {str(self._path)!r} is full: {free_space(self._path or '.')}")

    def reuse(self, keys: Iterable[str]) -> None:
        """Append the rows of these cells again as rows of this run, which name the run that compared the cell."""
        self.add(*(self.rows[key].reused_in(self.run) for key in keys))

    def close(self) -> None:
        """Close the file, which lets another process write to it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, path: Path) -> int:
        """Add the rows of the file, and return how many bytes of it are complete lines."""
        complete = 0
        with open_untrusted(path, follow=False) as file:
            for number, line in enumerate(read_lines(file, budget_of("ledger")), 1):
                if line.endswith(b"\n"):
                    self._add(line, number)
                    complete += len(line)
                elif not is_cut_short(line, "filch_ledger"):
                    raise self._no_row(number)
        return complete

    def _add(self, line: bytes, number: int) -> None:
        """Add the row of a line of the file; `number` is that of the line, for errors."""
        try:
            row = ledger_row(parse_json(line))
        except (KeyError, TypeError, ValueError) as error:
            raise self._no_row(number) from error
        if row.filch_ledger != VERSION:
            version = row.filch_ledger
            raise CompareError(f"the ledger {str(self._path)!r} has version {version}, and {VERSION} is supported")
        known = self.rows.get(row.key)
        if known is None or known.run != row.run:  # the first row of a run counts
            self.rows[row.key] = row

    def _no_row(self, number: int) -> CompareError:
        return CompareError(f"{str(self._path)!r} is not a ledger: line {number} is no row of one")


def row_of(key: str, labels: Mapping[str, str], outcome: Mapping[str, Any], *, run: str, attempt: int) -> LedgerRow:
    """Return the row of an outcome, which a worker or its supervisor reported (see `run_worker`)."""
    defaults: dict[str, Any] = {"error": None, "detail": "", "blame": None, "environment": {}}
    identity = {"filch_ledger": VERSION, "key": key, "run": run, "time": now(), "labels": labels, "attempt": attempt}
    return ledger_row({**defaults, **outcome, **identity})


def now() -> str:
    """Return the time: UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _opened(path: Path) -> int:
    """Open the file, which must be a regular one, or create it."""
    flags = os.O_RDWR | os.O_APPEND
    try:
        return open_descriptor(path, flags, follow=False)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)


def _lock(file: int) -> None:
    """Lock the file until it is closed; raise `BlockingIOError` if another process has locked it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]  fcntl is not None here
    except OSError as error:
        if isinstance(error, BlockingIOError):
            raise
        _log.debug("can't lock the ledger: %s", error)  # network file systems may not support locks
