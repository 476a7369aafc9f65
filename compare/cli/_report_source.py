"""What `filch repro` takes from a report, which is not trusted."""

import os
import shlex
from pathlib import Path
from typing import Any

from filch.steal.text._visible import short_line

from .._blame import failing_tolerance
from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance
from ..rendering._words import command_text
from ..results._next_command import to_repeat, unsafe_options
from ..results._report import Report
from ..results._rows import Row


def trusted_options(report: Report, overrides: dict[str, str]) -> dict[str, Any]:
    """Return the options of the report, which is not trusted, updated with those of the command line."""
    for name in unsafe_options(report.options):
        if name not in overrides:
            raise CompareError(
                f"the report was made with the option {name!r}, which may run programs or write files: "
                f"if you trust it, give --option {name}=…"
            )
    return {**report.options, **overrides}


def row_to_reproduce(report: Report, node: str | None) -> tuple[Row, Tolerance | None]:
    """Return the row that a repro shows, and a tolerance that its difference exceeds; None is that of the dtype.

    Args:
        report: the report.
        node: the name of a node or value; None is the first divergence.
    """
    if node is None:
        if report.first_divergence is None:
            raise CompareError("nothing differs in this report: choose a node with --node")
        return report.first_divergence, failing_tolerance(report, report.first_divergence)
    rows = [row for row in report.rows if node in (row.node, row.value)]
    if not rows:
        raise CompareError(f"there is no node or value {node!r} in this report")
    row = next((row for row in rows if row.diverged), rows[0])
    return row, failing_tolerance(report, row)


def needs_inputs(reference: Path, program: Path, report: Report, folder: Path) -> CompareError:
    """Return the error that a report of two programs gives no repro, with the command that writes one."""
    command = to_repeat(
        str(reference), str(program), backend=report.backend, options=report.options, tolerance=report.tolerance
    )
    command = command or command_text("compare", reference, program)  # a file is missing, or an option unsafe
    return CompareError(
        f"no repro: the reference {str(reference)!r} is a program, and the report does not contain the inputs of both; "
        "run this, with --inputs, --seed and --shape as for the report:\n"
        f"  {command} --blame {shlex.quote(str(folder))}"
    )


def recorded_file(override: Path | None, recorded: str, what: str, option: str) -> Path:
    """Return the file of the command line, else that of the report; `what` and `option` are for the error."""
    path = Path(recorded) if override is None else override
    if not os.path.isfile(path):  # noqa: PTH113  `Path.is_file` raises for a name that is too long
        raise CompareError(f"the {what} '{short_line(path)}' is not a file: give {option}")
    return path
