"""The runs of a bisection on disk, so that one that was stopped goes on where it was."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filch.steal import parse_json, read_untrusted

from ..common._errors import CompareError
from ..rendering._json import plain, typed
from ..results._bisection import Step

_VERSION = 1
_LARGEST = 2**26  # bytes; a run takes some hundreds


class Journal:
    """A file of JSON lines: what it is about, then each run as soon as it is over.

    Args:
        path: the file; None keeps nothing.
        about: what must be the same for the runs to count, by what it is called.

    Attributes:
        steps: the runs that were there already.

    Raises:
        CompareError: the file is about something else, or is no journal, or can't be written.
    """

    def __init__(self, path: Path | None, about: Mapping[str, str]) -> None:
        self._path = path
        self.steps: list[Step] = []
        if path is None:
            return
        heading = {"filch_bisect_journal": _VERSION, **about}
        lines = self._lines(path)
        if lines:
            self._check(lines[0], heading)
            self.steps = [self._read(line, number) for number, line in enumerate(lines[1:], 2)]
        # What a kill has cut off goes, so that the next line does not stand behind it.
        self._write("".join(f"{line}\n" for line in lines) or _line(heading), "w")

    def add(self, step: Step) -> None:
        """Keep a run."""
        if self._path is not None:
            outcome = asdict(step.outcome)
            self._write(_line({**asdict(step), "outcome": outcome}), "a")

    def _lines(self, path: Path) -> list[str]:
        try:
            text = read_untrusted(path, _LARGEST, follow=False).decode("utf-8")
        except FileNotFoundError:
            text = ""
        except OSError as error:
            raise CompareError(f"can't read the journal {str(path)!r}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise CompareError(f"can't read the journal {str(path)!r}: {error}") from error
        return text.split("\n")[:-1]  # what has no end is what was being written

    def _check(self, line: str, heading: Mapping[str, Any]) -> None:
        found = _read(line)
        if not isinstance(found, dict) or "filch_bisect_journal" not in found:
            raise CompareError(f"{str(self._path)!r} is no journal of a bisection: give another file")
        other = [name.replace("_", " ") for name in heading if found.get(name) != heading[name]]
        if other:
            raise CompareError(
                f"the journal {str(self._path)!r} is of another {' and another '.join(other)}: "
                "remove it, or give another file"
            )

    def _read(self, line: str, number: int) -> Step:
        try:
            step: Step = typed(Step, _read(line), "step")
        except (KeyError, TypeError, ValueError) as error:
            raise CompareError(f"the journal {str(self._path)!r} is damaged in line {number}: remove it") from error
        return step

    def _write(self, text: str, mode: str) -> None:
        if self._path is not None:
            try:
                with open(self._path, mode, encoding="utf-8", opener=_no_link) as file:
                    file.write(text)
            except OSError as error:
                raise CompareError(f"can't write the journal {str(self._path)!r}: {error.strerror or error}") from error


def _line(contents: Mapping[str, Any]) -> str:
    return f"{json.dumps(plain(dict(contents)))}\n"


def _read(line: str) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return None


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
