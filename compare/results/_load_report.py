"""Reads the JSON that a report was written as."""

import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filch.export import graph_from_json
from filch.export.backends import Stage
from filch.steal import parse_json, read_untrusted

from ..common._errors import CompareError
from ..common._json import typed
from ..metrics._metrics import Difference
from ..metrics._tolerance import Tolerance
from ._formats import VERSION
from ._report import Fate, ModuleRow, Operator, Report, Row


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
    if type(version) is not int or not _OLDEST <= version <= VERSION:
        raise CompareError(
            f"{str(where)!r} is a report of version {reprlib.repr(version)}; this reads {_OLDEST} to {VERSION}"
        )
    try:
        return _report(_ADDED | found)
    except _DAMAGE as error:
        said = " ".join(str(error)[:_LONGEST].split())
        raise CompareError(f"the report {str(where)!r} is damaged: {type(error).__name__}: {said}") from error


def _report(found: Mapping[str, Any]) -> Report:
    rows = typed(tuple[Row, ...], [_ADDED_TO_ROWS | row for row in found["rows"]], "rows")
    return Report(
        **{name: typed(kind, found[name], name) for name, kind in _PLAIN.items()},
        rows=rows,
        operators=tuple(tuple(_operator(item, rows) for item in call) for call in found["operators"]),
        graphs={_stage(stage): graph_from_json(graph) for stage, graph in found["graphs"].items()},
    )


# What taking wrong JSON for a report can raise; RecursionError is a RuntimeError.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, CompareError)
_LONGEST = 300  # characters of what is said of it
_OLDEST = 2
_ADDED: dict[str, Any] = {"interface": []}  # since then
_ADDED_TO_ROWS: dict[str, Any] = {"random": False}

_PLAIN: Mapping[str, Any] = {
    "backend": str,
    "reference": str,
    "program": str,
    "options": dict,
    "tolerance": Tolerance | None,
    "lower_precision": bool,
    "modules": tuple[ModuleRow, ...],
    "effect": Difference | None,
    "notes": tuple[str, ...],
    "calls": tuple[int, int],
    "failed": tuple[str, ...],
    "interface": tuple[str, ...],
    "fates": tuple[Fate, ...],
    "culprits": tuple[str, ...],
    "switches": int | None,
    "repro": str,
}


def _stage(name: str) -> Stage:
    stage: Stage = typed(Stage, name, "graphs")
    return stage


def _operator(found: Any, rows: tuple[Row, ...]) -> Operator:
    kind, text, place, dtype = typed(tuple[str, str, int | None, str], found, "operators")
    return Operator(kind, text, None if place is None else rows[place], dtype)
