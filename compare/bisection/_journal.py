"""The runs of a bisection on disk, so that an interrupted bisection can be resumed."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filch.export.backends import Switch
from filch.steal import LimitError, budget_of, open_untrusted, parse_json, read_lines, writing

from ..common._errors import CompareError
from ..rendering._json import plain, typed
from ..results._bisection import Step

_VERSION = 1
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
        header = {"filch_bisect_journal": _VERSION, **identity}
        lines = self._lines(path)
        if lines:
            self._check(lines[0], header)
            steps = (self._step(line, number) for number, line in enumerate(lines[1:], 2))
            self.steps = {frozenset(step.off): step for step in steps}
        # Remove a line that a kill cut short, so that the next line is not appended to it.
        self._write("".join(f"{line}\n" for line in lines) or _to_line(header), "w")

    def add(self, step: Step) -> None:
        """Append a run."""
        if self._path is not None:
            self._write(_to_line(asdict(step)), "a")

    def _lines(self, path: Path) -> list[str]:
        try:
            with open_untrusted(path, follow=False) as file:
                lines = [line.decode("utf-8") for line in read_lines(file, budget_of(_KIND))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CompareError(f"can't read the journal {str(path)!r}: {error.strerror or error}") from error
        except (LimitError, UnicodeDecodeError) as error:
            raise CompareError(f"can't read the journal {str(path)!r}: {error}") from error
        return [line[:-1] for line in lines if line.endswith("\n")]  # a last line without an end is incomplete

    def _check(self, line: str, header: Mapping[str, Any]) -> None:
        stored = _parse_line(line)
        if not isinstance(stored, dict) or "filch_bisect_journal" not in stored:
            raise CompareError(f"{str(self._path)!r} is not a journal of a bisection: give another file")
        other = [name.replace("_", " ") for name in header if stored.get(name) != header[name]]
        if other:
            raise CompareError(
                f"the journal {str(self._path)!r} is of another {' and another '.join(other)}: "
                "remove it, or give another file"
            )

    def _step(self, line: str, number: int) -> Step:
        try:
            step: Step = typed(Step, _parse_line(line), "step")
        except (KeyError, TypeError, ValueError) as error:
            raise CompareError(f"the journal {str(self._path)!r} is damaged in line {number}: remove it") from error
        return step

    def _write(self, text: str, mode: str) -> None:
        if self._path is not None:
            with (
                writing(self._path, CompareError),
                open(self._path, mode, encoding="utf-8", opener=_open_no_link) as file,
            ):
                file.write(text)


def _to_line(contents: Mapping[str, Any]) -> str:
    return f"{json.dumps(plain(dict(contents)))}\n"


def _parse_line(line: str) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return None


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
