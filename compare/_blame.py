"""Add the cause of an error to a report: its culprits and a repro."""

import math
import os
from dataclasses import replace
from typing import Any

import onnx_ir as ir
import torch

from filch.export import Program, as_program
from filch.export.backends import Backend, SwitchesTorch, get_backend
from filch.steal import FilchError, Records

from .bisection._bisect import bisect, search
from .bisection._call_runner import CallRunner
from .dynamo._compiled_call import CompiledCall
from .metrics._tolerance import Tolerance
from .repro._write import write_repro
from .results._bisection import BisectReport
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
    if first is None and not report.failed:
        return report
    exported = as_program(program)
    common: dict[str, Any] = {"backend": backend} if backend else {"backend": report.backend, "options": report.options}
    common |= {"limit": limit}
    if first is None:
        return _blame_failure(report, reference, exported, folder, common)
    judged = _judged_row(report, first)
    value = judged.value if judged.value in exported.graph.producer else None  # else the outputs are judged
    tolerance = failing_tolerance(report, judged)
    notes, report = list(report.notes), replace(report, switches=0)
    try:
        result = bisect(
            reference, exported, lower_precision=report.lower_precision, value=value, tolerance=tolerance, **common
        )
    except FilchError as error:
        notes.append(f"the search for culprits failed: {error}")
    else:
        culprits = tuple(culprit.name for culprit in result.culprits)
        # If there was no error with all switches on, `bisect` has tried none.
        report = replace(report, culprits=culprits, switches=0 if result.close else len(result.candidates))
    if folder is not None:
        try:
            where: dict[str, Any] = {"call": first.call, "stage": first.stage}
            tolerance = failing_tolerance(report, first)
            repro = write_repro(reference, exported, first.node, folder, tolerance=tolerance, **where, **common)
        except FilchError as error:
            notes.append(f"no repro was written: {error}")
        else:
            report = replace(report, repro=str(repro.folder))
    return replace(report, notes=tuple(notes))


def blame_call(report: Report, call: CompiledCall) -> Report:
    """Find the steps of the compiler without which a call of `torch.compile` computes what eager PyTorch does.

    Args:
        report: the report of one of the call's graphs.
        call: the call.

    Returns:
        the report with `culprits` and `switches`, or with a note if the search fails; unchanged if nothing differs, if
        the call can't be checked, or if the backend has no such steps.
    """
    first, backend = report.first_divergence, get_backend(call.backend, **call.options)
    if first is None or call.obstacle or not isinstance(backend, SwitchesTorch):
        return report
    runner = CallRunner(call, backend, failing_tolerance(report, _judged_row(report, first)))
    before = runner.without(())
    found = BisectReport(
        report.backend, report.reference, report.program, None, before.outcome, None, None, (), before.switches, ()
    )
    if found.close:  # what differs is not a result of the call
        return report if report.switches is not None else replace(report, switches=0)
    try:
        found = search(found, runner, grow=True) if found.candidates else found
    except FilchError as error:
        return replace(report, notes=(*report.notes, f"the search for culprits of the call failed: {error}"))
    finally:
        torch.compiler.reset()  # of the variants
    culprits = tuple(culprit.name for culprit in found.culprits)
    return replace(report, culprits=culprits, switches=len(found.candidates))


def _blame_failure(
    report: Report,
    reference: str | os.PathLike[str] | Records,
    program: Program,
    folder: str | os.PathLike[str] | None,
    common: dict[str, Any],
) -> Report:
    """Find the transformations without which the backend can run the program, and write a repro of its failure."""
    notes, failure = list(report.notes), report.failed[0]
    try:
        result = bisect(reference, program, lower_precision=report.lower_precision, **common)
    except FilchError as error:
        return replace(report, notes=(*notes, f"the search for culprits failed: {error}"))
    culprits = tuple(culprit.name for culprit in result.culprits)
    if culprits:
        notes.append(f"without {' and '.join(culprits)}, {report.backend} can run the program")
    graphs = (program.graph, *report.graphs.values())
    # The longest name is last: a shorter one may be a part of it in the message.
    named = sorted((node.name for graph in graphs for node in graph.nodes if node.name in failure), key=len)
    if folder is not None and named and culprits:
        try:
            repro = write_repro(reference, program, named[-1], folder, stage="compiled", fails=True, **common)
        except FilchError as error:
            notes.append(f"no repro was written: {error}")
        else:
            report = replace(report, repro=str(repro.folder))
    return replace(report, notes=tuple(notes), culprits=culprits, switches=len(result.candidates))


def failing_tolerance(report: Report, row: Row) -> Tolerance | None:
    """Return a tolerance that the difference of a wrong row exceeds; None is the default of the dtype.

    Of a row that float64 judged, it is a fourth of the difference: rounding may exceed the default tolerance, and an
    error may be within it.
    """
    difference = row.difference
    if report.tolerance is not None or difference is None or (row.float64 is None and row.isolated is None):
        return report.tolerance
    limits = [limit / _SHARE for limit in (difference.error, difference.scale, difference.rms)]
    return Tolerance(*limits) if all(map(math.isfinite, limits)) else None


def _judged_row(report: Report, first: Row) -> Row:
    """Return the row of the value to judge by: the model's output with the largest error, else the first divergence."""
    outputs = [row for row in report.rows if row.kind == "output" and row.diverged]
    return max(outputs, key=lambda row: 0.0 if row.float64 is None else row.float64.ratio, default=first)
