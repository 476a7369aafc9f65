"""The runs of a bisection on disk, so that an interrupted bisection can be resumed."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filch.export.backends import Switch
from filch.steal import writing
from filch.steal.files._budget import LimitError
from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import open_untrusted, parse_json, read_lines

from ..common._cut_short import is_cut_short
from ..common._errors import CompareError
from ..rendering._json import plain, typed
from ..results._bisection import Step

_VERSION = 1
_KEY = "filch_bisect_journal"
_KIND = "journal of a bisection"


class Journal:
    """A file of JSON lines: a header that identifies the bisection, then each run when it has ended.

    Args:
        path: the file; None stores nothing.
        identity: the properties that must be equal for stored runs to be valid, by their names.

    Attributes:
        steps: the runs that the file held already, by the transformations that were disabled.

    Raises:
        CompareError: the file belongs to another bisection, is not a journal, or can't be read or written.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, str]) -> None:
        self._path = path
        self.steps: dict[frozenset[Switch], Step] = {}
        if path is None:
            return
        header = {_KEY: _VERSION, **identity}
        lines = self._lines(path)
        complete = [line for line in lines if line.endswith(b"\n")]
        # A single line without an end may be the beginning of a header, whose writing was interrupted.
        if lines and not (complete or is_cut_short(lines[0], _KEY)):
            raise self._not_a_journal()
        if complete:
            self._check(complete[0], header)
            steps = (self._step(line, number) for number, line in enumerate(complete[1:], 2))
            self.steps = {frozenset(step.off): step for step in steps}
        if len(complete) < len(lines):  # so that the next line is not appended to one that a kill cut short
            self._cut(path, sum(map(len, complete)))
        if not complete:
            self._write(_to_line(header))

    def add(self, step: Step) -> None:
        """Append a run."""
        if self._path is not None:
            self._write(_to_line(asdict(step)))

    def _lines(self, path: Path) -> list[bytes]:
        """Return the lines with their ends, of which the last one may lack its own; empty if there is no file."""
        try:
            with open_untrusted(path, follow=False) as file:
                return [*read_lines(file, budget_of(_KIND))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CompareError(f"can't read the journal {str(path)!r}: {error.strerror or error}") from error
        except LimitError as error:
            raise CompareError(f"can't read the journal {str(path)!r}: {error}") from error

    def _check(self, line: bytes, header: Mapping[str, Any]) -> None:
        """Raise an error unless a line is the header of a journal of this bisection."""
        stored = _parse_line(line)
        if not isinstance(stored, dict) or _KEY not in stored:
            raise self._not_a_journal()
        other = [name.replace("_", " ") for name in header if stored.get(name) != header[name]]
        if other:
            raise CompareError(
                f"the journal {str(self._path)!r} is of another {' and another '.join(other)}: "
                "remove it, or give another file"
            )

    def _step(self, line: bytes, number: int) -> Step:
        """Return the run of a line; the number of the line is for messages."""
        try:
            step: Step = typed(Step, _parse_line(line), "step")
        except (KeyError, TypeError, ValueError) as error:
            raise CompareError(f"the journal {str(self._path)!r} is damaged in line {number}: remove it") from error
        return step

    def _not_a_journal(self) -> CompareError:
        return CompareError(f"{str(self._path)!r} is not a journal of a bisection: give another file")

    def _cut(self, path: Path, size: int) -> None:
        with writing(path, CompareError), open(path, "r+b", opener=_open_no_link) as file:
            file.truncate(size)

    def _write(self, text: str) -> None:
        if self._path is not None:
            with (
                writing(self._path, CompareError),
                open(self._path, "a", encoding="utf-8", opener=_open_no_link) as file,
            ):
                file.write(text)


def _to_line(contents: Mapping[str, Any]) -> str:
    return f"{json.dumps(plain(dict(contents)))}\n"


def _parse_line(line: bytes) -> Any:
    """Return the contents of a line; None if it is no JSON."""
    try:
        return parse_json(line)
    except ValueError:
        return None


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
