"""Reads the JSON that a report was written as."""

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from filch.export import Histogram, graph_from_json
from filch.steal import Statistics

from ._errors import CompareError
from ._formats import VERSION
from ._metrics import Difference
from ._report import Fate, ModuleRow, Operator, Report, Row
from ._spread import Spread
from ._tolerance import Tolerance

T = TypeVar("T")
_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


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
        found = json.loads(where.read_text("utf-8"))
    except OSError as error:
        raise CompareError(f"can't read {str(where)!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise CompareError(f"{str(where)!r} is no JSON: {error}") from error
    if not isinstance(found, dict) or "filch_report" not in found:
        raise CompareError(f"{str(where)!r} is JSON, but no report: `filch check --output report.json` writes one")
    if found["filch_report"] != VERSION:
        raise CompareError(f"{str(where)!r} is a report of version {found['filch_report']!r}; this reads {VERSION}")
    try:
        return _report(found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CompareError(f"the report {str(where)!r} is damaged: {type(error).__name__}: {error}") from error


def _report(found: Mapping[str, Any]) -> Report:
    rows = tuple(map(_row, found["rows"]))
    compared, there = found["calls"]
    return Report(
        backend=found["backend"],
        reference=found["reference"],
        program=found["program"],
        rows=rows,
        modules=tuple(_made(ModuleRow, row, difference=_difference(row["difference"])) for row in found["modules"]),
        effect=_difference(found["effect"]),
        notes=tuple(found["notes"]),
        calls=(compared, there),
        failed=tuple(found["failed"]),
        operators=tuple(tuple(_operator(item, rows) for item in call) for call in found["operators"]),
        fates=tuple(_made(Fate, fate, into=tuple(fate["into"])) for fate in found["fates"]),
        graphs={stage: graph_from_json(graph) for stage, graph in found["graphs"].items()},
    )


def _row(found: Mapping[str, Any]) -> Row:
    lists = {name: tuple(found[name]) for name in ("origins", "operators", "behind")}
    shape = None if found["shape"] is None else tuple(found["shape"])
    difference, spread = _difference(found["difference"]), _spread(found["spread"])
    return _made(Row, found, **lists, shape=shape, difference=difference, spread=spread)


def _difference(found: Mapping[str, Any] | None) -> Difference | None:
    if found is None:
        return None
    index, limits = tuple(found["index"]), Tolerance(**found["tolerance"])
    numbers = {name: _NUMBERS.get(item, item) if isinstance(item, str) else item for name, item in found.items()}
    return _made(Difference, {**numbers, "problem": found["problem"]}, index=index, tolerance=limits)


def _spread(found: Mapping[str, Any] | None) -> Spread | None:
    if found is None:
        return None
    bars = found["histogram"]
    if bars is not None:
        bars = _made(Histogram, bars, expected=tuple(bars["expected"]), actual=tuple(bars["actual"]))
    return Spread(_statistics(found["expected"]), _statistics(found["actual"]), bars)


def _statistics(found: Mapping[str, Any]) -> Statistics:
    measured = {name: _NUMBERS.get(found[name], found[name]) for name in ("minimum", "maximum", "mean", "std")}
    return _made(Statistics, found, shape=tuple(found["shape"]), **measured)


def _operator(found: list[Any], rows: tuple[Row, ...]) -> Operator:
    kind, text, place, dtype = found
    return Operator(kind, text, None if place is None else rows[place], dtype)


def _made(kind: type[T], found: Mapping[str, Any], **instead: Any) -> T:
    """A dataclass of what is noted by its fields' names; what stands there besides is for other readers."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: instead[name] if name in instead else found[name] for name in names})
