"""Compares an exported model, with the exporter's optimisations where a backend can't run it without."""

from dataclasses import replace
from typing import Any

from filch.export import BackendError, Program, optimize
from filch.steal import FilchError, Records

from ._compare import Path, compare
from .results._cells import OPTIMIZED
from .results._report import Report


def compare_runnable(reference: Path | Records, program: Program, **how: Any) -> tuple[Report, Program]:
    """Compare a program; if the backend refuses what `export` made, compare what `optimize` makes of that.

    Exporters leave it to their optimiser to make some operators' inputs such that a runtime takes them.

    Args:
        reference: as for `compare`.
        program: as `export` returned it.
        how: the other arguments of `compare`.

    Returns:
        the report, with a note that says why the program was optimised, if it was; and what was compared.

    Raises:
        FilchError: see `compare`; what the backend says of the program as it was exported.
    """
    try:
        return compare(reference, program, **how), program
    except BackendError as error:
        if program.original is None or program.is_changed():
            raise
        refused = error
    try:
        optimized = optimize(program)
        report = compare(reference, optimized, **how)
    except FilchError:
        raise refused from None
    return replace(report, notes=(f"{OPTIMIZED}{refused}", *report.notes)), optimized


def compare_export(reference: Path | Records, program: Program, **how: Any) -> Report:
    """The report of `compare_runnable`."""
    return compare_runnable(reference, program, **how)[0]
