"""Add the cause of an error to a report: its culprits and a repro."""

import os
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from filch.export import Program, as_program
from filch.export.backends import Backend
from filch.steal import FilchError, Records

from .bisection import bisect
from .metrics._tolerance import Tolerance
from .repro import write_repro
from .results._report import Report
from .results._rows import Row

_SHARE = 4.0  # a fourth of an error still counts as the error: part of it may be inherited


def blame(
    report: Report,
    reference: str | os.PathLike[str] | Records,
    program: str | os.PathLike[str] | Program | ir.Model,
    folder: str | os.PathLike[str] | None = None,
    *,
    backend: Backend | None = None,
    limit: float | None = None,
) -> Report:
    """Find the transformations that cause the first divergence of a report, and write a repro of it.

    `bisect` disables the backend's optional transformations until the error disappears; `write_repro` extracts and
    minimizes the node where the error begins. If either fails, a note in the report states the error.

    Args:
        report: the result of comparing `program` with `reference`.
        reference: the capture or dump that was compared, or the path of a dump.
        program: the program that was compared.
        folder: the folder to write the repro to; None writes none.
        backend: the backend of the comparison, if `compare` was called with an instance instead of a name.
        limit: see `compare`.

    Returns:
        the report with `culprits`, `switches` and `repro`; unchanged if nothing differs.
    """
    first = report.first_divergence
    if report.close or first is None:
        return report
    exported = as_program(program)
    common: dict[str, Any] = {"backend": backend} if backend else {"backend": report.backend, "options": report.options}
    common |= {"tolerance": failing_tolerance(report, first), "limit": limit}
    lower, value = report.lower_precision, _value(report, exported, first)
    notes = list(report.notes)
    try:
        result = bisect(reference, exported, lower_precision=lower, value=value, **common)
    except FilchError as error:
        notes.append(f"the search for culprits failed: {error}")
    else:
        culprits = tuple(culprit.name for culprit in result.culprits)
        report = replace(report, culprits=culprits, switches=None if result.close else len(result.candidates))
    if folder is not None:
        try:
            repro = write_repro(reference, exported, first.node, folder, **common, call=first.call, stage=first.stage)
        except FilchError as error:
            notes.append(f"no repro was written: {error}")
        else:
            report = replace(report, repro=str(repro.folder))
    return replace(report, notes=tuple(notes))


def failing_tolerance(report: Report, row: Row) -> Tolerance | None:
    """Return a tolerance that the difference of a wrong row exceeds.

    The float64 check finds errors within the default tolerance: then the limits are a fourth of the difference.
    """
    difference = row.difference
    if report.tolerance is not None or row.isolated is None or difference is None or not difference.close:
        return report.tolerance
    return Tolerance(difference.error_max / _SHARE, difference.scale / _SHARE, difference.rms / _SHARE)


def _value(report: Report, program: Program, row: Row) -> str | None:
    """Return the exported value to judge by, or None to judge by the outputs, if these exceed the tolerance."""
    if any(item.kind == "output" and item.difference is not None and not item.difference.close for item in report.rows):
        return None
    return row.value if row.value in program.graph.producer else None
