"""Reads the JSON that a report was written as."""

import os
import reprlib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from filch.steal import parse_json, read_untrusted

from ..common._errors import CompareError
from ..rendering._json import typed
from ._report import VERSION, Report
from ._rows import Operator, Row


def load_report(path: str | os.PathLike[str]) -> Report:
    """Read what `Report.to_json` wrote.

    Args:
        path: of the file.

    Returns:
        the report, as it was but for the models that its graphs were read from.

    Raises:
        CompareError: there is no such file, it is no report, or it is damaged.
    """
    where = Path(path)
    try:
        found = parse_json(read_untrusted(where))
    except OSError as error:
        raise CompareError(f"can't read {str(where)!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise CompareError(f"{str(where)!r} is no JSON: {error}") from error
    if not isinstance(found, dict) or "filch_report" not in found:
        raise CompareError(f"{str(where)!r} is JSON, but no report: `filch check --output report.json` writes one")
    version = found["filch_report"]
    if type(version) is not int or version != VERSION:
        raise CompareError(
            f"{str(where)!r} is a report of version {reprlib.repr(version)}; this reads version {VERSION}"
        )
    try:
        return _report(found)
    except _DAMAGE as error:
        said = " ".join(str(error)[:_LONGEST].split())
        raise CompareError(f"the report {str(where)!r} is damaged: {type(error).__name__}: {said}") from error


def _report(found: Mapping[str, Any]) -> Report:
    rows = typed(tuple[Row, ...], found["rows"], "rows")
    operators = [[_operator(item, rows) for item in call] for call in found["operators"]]
    hints = get_type_hints(Report)
    others = {
        item.name: typed(hints[item.name], found[item.name], item.name)
        for item in fields(Report)
        if item.name not in ("rows", "operators")
    }
    return Report(rows=rows, operators=tuple(map(tuple, operators)), **others)


# What taking wrong JSON for a report can raise; RecursionError is a RuntimeError.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, CompareError)
_LONGEST = 300  # characters of what is said of it


def _operator(found: Mapping[str, Any], rows: tuple[Row, ...]) -> Operator:
    place = typed(int | None, found["row"], "operators.row")
    operator: Operator = typed(Operator, {**found, "row": None}, "operators")
    return operator if place is None else replace(operator, row=rows[place])
