"""The command that a report suggests to run next."""

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..rendering._table import Block, Line
from ._untrusted_options import unsafe_options

if TYPE_CHECKING:
    from ._report import Report


@dataclass(frozen=True)
class NextCommand:
    """A command that narrows a result down.

    Attributes:
        command: the command line, or an expression of Python if the result was made from objects in memory.
        purpose: what it does, as a phrase.
    """

    command: str
    purpose: str

    def blocks(self) -> Iterable[Block]:
        """Return the lines for people."""
        yield Line(f"Next, {self.purpose}:", "heading")
        yield Line(f"  {self.command}", "command")


def next_command(report: "Report") -> NextCommand | None:
    """Return the command that narrows a difference down: its cause and a repro, then the repro's script.

    If nothing differs, it shows the value of each node.
    """
    if report.repro:
        script = shlex.quote(os.path.join(report.repro, "repro.py"))  # noqa: PTH118  as it was given
        return NextCommand(f"python {script}", "show the error without Filch")
    command = report.command or _compare_command(report)
    if report.first_divergence is None or report.lower_precision:
        if not command:
            return NextCommand('report.table("nodes")', "show a row for each value")
        return NextCommand(f"{command} --all", "show a row for each value")
    if report.switches is not None or report.culprits:  # `blame` found no repro
        return NextCommand(f"{command} --every-node -o report.html", "run every node alone, and look at the graph")
    folder = _new_folder("blame")
    if not command:
        return NextCommand(f"blame(report, capture, program, {folder!r})", "find the cause and write a repro")
    return NextCommand(f"{command} --blame {folder}", "find the cause and write a repro")


def _compare_command(report: "Report") -> str:
    """Return the command that compares the files of a report again; `""` if they are objects in memory."""
    files = (report.reference, report.program)
    exist = all(name.isprintable() and os.path.isfile(name) for name in files)  # noqa: PTH113  any text
    if not exist or unsafe_options(report.options):  # the report may be a file from somebody else
        return ""
    options = [part for name, value in report.options.items() for part in ("--option", f"{name}={value}")]
    tolerance = [] if report.tolerance is None else ["--tolerance", str(report.tolerance.harmonic)]
    return shlex.join(["filch", "compare", *files, "-b", report.backend, *options, *tolerance])


def _new_folder(name: str) -> str:
    """Return the name of a folder that does not exist."""
    number, folder = 1, name
    while Path(folder).exists():
        number += 1
        folder = f"{name}-{number}"
    return folder
