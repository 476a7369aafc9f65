"""Compare an exported model, optimized by the exporter if the backend cannot run it otherwise."""

from dataclasses import replace
from typing import Any

from filch.export import BackendError, Program, optimize
from filch.steal import FilchError, Records

from ._compare import Path, compare
from .results._cells import OPTIMIZED
from .results._report import Report


def compare_runnable(reference: Path | Records, program: Program, **options: Any) -> tuple[Report, Program]:
    """Compare a program; if the backend rejects it, optimize it with `optimize` and compare the result.

    Exporters rely on their optimizer to give some operators inputs that runtimes support.

    Args:
        reference: as for `compare`.
        program: the result of `export`.
        **options: the keyword arguments of `compare`.

    Returns:
        the report and the program that was compared. If it was optimized, a note in the report gives the reason.

    Raises:
        FilchError: see `compare`; a `BackendError` is that of the program before optimization.
    """
    try:
        return compare(reference, program, **options), program
    except BackendError as error:
        if program.original is None or program.is_changed():
            raise
        refused = error
    try:
        optimized = optimize(program)
        report = compare(reference, optimized, **options)
    except FilchError:
        raise refused from None
    return replace(report, notes=(f"{OPTIMIZED}{refused}", *report.notes)), optimized


def compare_export(reference: Path | Records, program: Program, **options: Any) -> Report:
    """Return the report of `compare_runnable`; `options` are the keyword arguments of `compare`."""
    return compare_runnable(reference, program, **options)[0]
