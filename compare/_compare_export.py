"""Compare an exported model, optimized by the exporter if the backend cannot run it otherwise."""

from dataclasses import replace
from typing import Any

from filch.export import BackendError, Program, optimize
from filch.steal import FilchError, Records

from ._compare import Path, compare
from .results._cells import OPTIMIZED_NOTE
from .results._report import Report

_PYTORCH_BACKENDS = ("inductor", "eager")


def compare_with_fallback(reference: Path | Records, program: Program, **options: Any) -> tuple[Report, Program]:
    """Compare a program; if the backend rejects it, compare the program that `optimize` makes of it.

    Without the exporter's optimizer, some exported operators have inputs that no runtime supports. A program that torch
    can't translate to ONNX is compared as it is, by backends that run PyTorch's operations.

    Args:
        reference: as for `compare`.
        program: the result of `export`; only a program that was not changed since is optimized.
        **options: the keyword arguments of `compare`.

    Returns:
        the report and the program that was compared. If it was optimized, a note in the report gives the reason.

    Raises:
        FilchError: see `compare`. If the optimized program fails too, the error is that of the given program.
    """
    if program.untranslated:
        return _compare_untranslated(reference, program, **options), program
    try:
        return compare(reference, program, **options), program
    except BackendError as error:
        if program.original is None or program.is_changed():
            raise
        rejection = error
    try:
        optimized = optimize(program)
        report = compare(reference, optimized, **options)
    except FilchError:
        raise rejection from None
    return replace(report, notes=(f"{OPTIMIZED_NOTE}{rejection}", *report.notes)), optimized


def _compare_untranslated(reference: Path | Records, program: Program, **options: Any) -> Report:
    """Compare a program that torch can't translate to ONNX, and say so in the report, or which backends run it.

    `program.untranslated` is the reason, `""` for other programs.
    """
    try:
        report = compare(reference, program, **options)
    except BackendError as error:
        backend = options.get("backend")
        if getattr(backend, "name", backend) in _PYTORCH_BACKENDS:
            raise
        others = " or ".join(map(repr, _PYTORCH_BACKENDS))
        advice = f"compare it on a backend that runs PyTorch's operations, such as {others}"
        raise BackendError(f"{program.untranslated}; {advice}") from error
    return replace(report, notes=(f"the graph has PyTorch's operations: {program.untranslated}", *report.notes))


def compare_export(reference: Path | Records, program: Program, **options: Any) -> Report:
    """Return the report of `compare_with_fallback`; `options` are the keyword arguments of `compare`."""
    return compare_with_fallback(reference, program, **options)[0]
