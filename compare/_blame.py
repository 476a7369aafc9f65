"""From 'it differs' to 'this is why': the culprit and a repro, put into a report."""

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

_SHARE = 4.0  # of an error is what is still called one: a part of it may be inherited


def blame(
    report: Report,
    reference: str | os.PathLike[str] | Records,
    program: str | os.PathLike[str] | Program | ir.Model,
    folder: str | os.PathLike[str] | None = None,
    *,
    backend: Backend | None = None,
    limit: float | None = None,
) -> Report:
    """Look for what is to blame for what a report found, and write a repro of it.

    What the backend can leave out is left out until the error is gone (see `bisect`), and the node at which the error
    begins is cut out and made small (see `write_repro`). What either can't do is a note in the report.

    Args:
        report: of a comparison of `program` with `reference`.
        reference: what the model did.
        program: what was compared with it.
        folder: where the repro goes; None is no repro.
        backend: what ran it, if it was not given to `compare` by its name.
        limit: see `compare`.

    Returns:
        the report, with `culprits`, `switches` and `repro`; as it is if nothing differs.
    """
    first = report.first_divergence
    if report.close or first is None:
        return report
    given = as_program(program)
    how: dict[str, Any] = {"backend": backend} if backend else {"backend": report.backend, "options": report.options}
    how |= {"tolerance": telling_tolerance(report, first), "limit": limit}
    lower, value = report.lower_precision, _value(report, given, first)
    notes = list(report.notes)
    try:
        found = bisect(reference, given, lower_precision=lower, value=value, **how)
    except FilchError as error:
        notes.append(f"no culprit was looked for: {error}")
    else:
        culprits = tuple(culprit.name for culprit in found.culprits)
        report = replace(report, culprits=culprits, switches=None if found.close else len(found.candidates))
    if folder is not None:
        try:
            made = write_repro(reference, given, first.node, folder, **how, call=first.call, stage=first.stage)
        except FilchError as error:
            notes.append(f"no repro was written: {error}")
        else:
            report = replace(report, repro=str(made.folder))
    return replace(report, notes=tuple(notes))


def telling_tolerance(report: Report, row: Row) -> Tolerance | None:
    """The tolerance that tells a row that is wrong from what it should be.

    Float64 finds errors that no usual tolerance does: then a fourth of what was found is one.
    """
    found = row.difference
    if report.tolerance is not None or row.isolated is None or found is None or not found.close:
        return report.tolerance
    return Tolerance(found.error_max / _SHARE, found.scale / _SHARE, found.rms / _SHARE)


def _value(report: Report, program: Program, row: Row) -> str | None:
    """The exported value to judge by; None are the results, if these are off by more than the tolerance."""
    if any(item.kind == "output" and item.difference is not None and not item.difference.close for item in report.rows):
        return None
    return row.value if row.value in program.graph.producer else None
