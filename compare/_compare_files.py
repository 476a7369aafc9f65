"""Compare two files, each a dump or an ONNX program."""

import os
from inspect import signature
from typing import Any

from filch.steal import Dump, NotADumpError, restore

from ._blame import blame as find_culprit
from ._compare import Path, compare
from ._compare_programs import compare_programs, pair_programs
from ._diff import diff
from .common._errors import CompareError
from .results._dump_diff import DumpDiff
from .results._report import Report

_OF_PROGRAMS = ("inputs", "reference_backend", "seed", "shapes")
_OF_PAIRS = (*_OF_PROGRAMS, "backend", "options", "lower_precision", "limit")


def compare_files(reference: Path, actual: Path, *, blame: Path | None = None, **settings: Any) -> Report | DumpDiff:
    """Compare two files by what they are.

    Args:
        reference: the path of a dump or of an ONNX program.
        actual: likewise. Two programs are compared by `compare_programs`, two dumps by `diff`. A dump
            and a program, in either order, are compared by `compare`.
        blame: if values of a program differ, find the cause and write a repro to this folder (see `blame`).
        **settings: the keyword arguments of that function. Those of another one may have their defaults.

    Raises:
        FilchError: a file can't be read, or a setting is of no use for these files.

    Example:
        >>> import torch
        >>> from filch.compare import compare_files
        >>> from filch.export import export
        >>> from filch.steal import steal_forward
        >>> model, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
        >>> with steal_forward(model, dump_file="ref.onnx"):
        ...     _ = model(x)
        >>> export(model, (x,)).save("model.onnx")
        >>> compare_files("ref.onnx", "model.onnx").close
        True
        >>> compare_files("model.onnx", "model.onnx").close
        True
    """
    defaults = {**signature(compare).parameters, **signature(compare_programs).parameters}
    given = {
        name: value
        for name, value in settings.items()
        if value is not None and value != {} and (name not in defaults or value != defaults[name].default)
    }
    expected, other = _dump(reference), _dump(actual)
    dump = other if expected is None else expected
    if dump is None:
        if "mapping" in given:
            raise CompareError("a mapping is for a dump and a program, or two dumps: `filch align` needs none")
        report = compare_programs(reference, actual, **given)
        if blame is None or report.close:
            return report
        pair = pair_programs(reference, actual, **{name: given[name] for name in _OF_PAIRS if name in given})
        return find_culprit(report, pair.capture, pair.program, blame, limit=given.get("limit"))
    if unused := [name for name in _OF_PROGRAMS if name in given]:
        raise CompareError(f"{unused[0]} is only for two programs: a dump has the inputs")
    if expected is None or other is None:
        if blame is not None and "mapping" in given:
            raise CompareError("what differs between two implementations has no cause in a runtime: use `filch align`")
        program = reference if expected is None else actual
        report = compare(dump, program, **given)
        limit = given.get("limit")
        return report if blame is None else find_culprit(report, dump, program, blame, limit=limit)
    given |= {} if blame is None else {"blame": blame}  # to be refused below
    if unused := [name for name in given if name not in ("mapping", "tolerance")]:
        raise CompareError(f"{unused[0]} is only for programs: two dumps are compared without running anything")
    tolerance = None if given.get("tolerance") == "default" else given.get("tolerance")
    return diff(expected, other, tolerance=tolerance, mapping=given.get("mapping"))


def _dump(path: str | os.PathLike[str]) -> Dump | None:
    """Return the dump at a path; None if the file is no dump."""
    try:
        return restore(path)
    except NotADumpError:
        return None
