"""Read reports from JSON."""

import os
import reprlib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import parse_json, read_untrusted

from ..common._errors import CompareError
from ..rendering._json import typed
from ._report import Report
from ._rows import ModelOperation, Row


def load_report(path: str | os.PathLike[str]) -> Report:
    """Read a report that `Report.to_json` wrote.

    Args:
        path: the path of the file.

    Returns:
        the report, without the ONNX models of its graphs.

    Raises:
        CompareError: there is no such file, it is no report, or it is damaged.
    """
    file = Path(path)
    try:
        data = parse_json(read_untrusted(file, budget_of("report")))
    except OSError as error:
        raise CompareError(f"can't read {str(file)!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise CompareError(f"{str(file)!r} is not JSON: {error}") from error
    if not isinstance(data, dict) or "filch_report" not in data:
        raise CompareError(f"{str(file)!r} is JSON, but no report: `filch check --output report.json` writes one")
    version = data["filch_report"]
    if type(version) is not int or version != _VERSION:
        raise CompareError(
            f"{str(file)!r} is a report of version {reprlib.repr(version)}; this Filch reads version {_VERSION}"
        )
    try:
        return _report(data)
    except _DAMAGE_ERRORS as error:
        detail = " ".join(str(error)[:_MAX_CAUSE].split())
        raise CompareError(f"the report {str(file)!r} is damaged: {type(error).__name__}: {detail}") from error


def _report(data: Mapping[str, Any]) -> Report:
    rows = typed(tuple[Row, ...], data["rows"], "rows")
    operators = [[_operator(item, rows) for item in call] for call in data["operators"]]
    hints = get_type_hints(Report)
    others = {
        item.name: typed(hints[item.name], data[item.name], item.name)
        for item in fields(Report)
        if item.name not in ("rows", "operators", *_NOT_TRUSTED)
    }
    return Report(rows=rows, operators=tuple(map(tuple, operators)), **others)


_VERSION = Report.FORMAT["filch_report"]
# Fields from which a report suggests a command to run, as the script of a repro is a program; and reasons for passing.
_NOT_TRUSTED = ("accepted", "command", "repro")

# Errors that reading damaged JSON as a report can raise; RecursionError is a RuntimeError.
_DAMAGE_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, CompareError)
_MAX_CAUSE = 300  # characters of the cause in a message


def _operator(data: Mapping[str, Any], rows: tuple[Row, ...]) -> ModelOperation:
    index = typed(int | None, data["row"], "operators.row")
    operator: ModelOperation = typed(ModelOperation, {**data, "row": None}, "operators")
    return operator if index is None else replace(operator, row=rows[index])
