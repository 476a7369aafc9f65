"""Log the start and the time of each pass."""

import os
from pathlib import Path

from filch.steal import writing
from filch.steal.files._outputs import refuse_link_out

from .._errors import PassError, reason
from ..program._program import Program
from ._instrument import Instrument


class ProfileInstrument(Instrument):
    """See `PassContext.profile_pass_instrument`. It prints only with `print_stdout`."""

    def __init__(self, *, log_file: str | os.PathLike[str] | None = None, print_stdout: bool = False) -> None:
        self._log_file = None if log_file is None else Path(log_file)
        self._print = print_stdout

    def before_all_passes(self, _: Program) -> None:
        """Empty the file."""
        self._write("", "w")

    def before_pass(self, name: str, _: Program) -> None:
        """Log the start."""
        self._log(f"{name:>50} started...")

    def pass_took(self, name: str, seconds: float) -> None:
        """Log the time."""
        self._log(f"{name:>50} {seconds:.3f} seconds")

    def pass_failed(self, name: str, _: Program, error: Exception) -> None:
        """Log the error."""
        self._log(f"{name:>50} failed: {reason(error)}")

    def _log(self, line: str) -> None:
        if self._print:
            print(line)
        self._write(f"{line}\n", "a")

    def _write(self, text: str, mode: str) -> None:
        """Write a line and close the file, so that the log is complete if the process ends."""
        path = self._log_file
        if path is None:
            return
        with writing(path, PassError):
            path.parent.mkdir(parents=True, exist_ok=True)
            refuse_link_out(path)
            with path.open(mode, encoding="utf-8") as file:
                file.write(text)
