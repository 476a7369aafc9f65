"""Reports for other programs: JSON, CSV and Markdown."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from filch.export import graph_to_json
from filch.steal import write_output
from filch.steal.text import for_csv, for_markdown

from .._diff import DumpDiff
from ..metrics._metrics import MEASURES
from ..precision._precision import PrecisionReport
from ..precision._sensitivity import Sensitivity
from ..rendering._markdown import table
from ._report import Operator, Report, Row

VERSION = 3  # of a report
_VERSION = 1  # of the others
_COLUMNS = (
    *("call", "stage", "index", "kind", "node", "op", "operators", "origins"),
    *("value", "module", "source", "dtype", "shape", "status", "reason", "evidence", "behind", "code", "seconds"),
)


def to_json(report: Report, path: str | os.PathLike[str] | None = None) -> str:
    """A report as JSON; what JSON has no number for (inf, NaN) is a string."""
    first = report.first_divergence
    places = {id(row): place for place, row in enumerate(report.rows)}
    contents = {
        "filch_report": VERSION,
        "backend": report.backend,
        "reference": report.reference,
        "program": report.program,
        "options": report.options,
        "tolerance": None if report.tolerance is None else asdict(report.tolerance),
        "lower_precision": report.lower_precision,
        "close": report.close,
        "undisturbed": report.undisturbed,
        "headline": report.headline(),
        "notes": report.notes,
        "random": report.random,
        "first_divergence": None if first is None else record(first),
        "rows": [_whole(row) for row in report.rows],
        "modules": [asdict(row) for row in report.modules],
        "fates": [asdict(fate) for fate in report.fates],
        "effect": None if report.effect is None else asdict(report.effect),
        "calls": report.calls,
        "failed": report.failed,
        "interface": report.interface,
        "operators": [[_operation(item, places) for item in call] for call in report.operators],
        "culprits": report.culprits,
        "switches": report.switches,
        "repro": report.repro,
        "explanation": None if report.explanation is None else report.explanation.facts(),
        "graphs": {stage: graph_to_json(graph) for stage, graph in report.graphs.items()},
    }
    return written(json.dumps(plain(contents), indent=1, default=str), path)  # an option may be a dtype


def _whole(row: Row) -> dict[str, Any]:
    """A row with all that is known of it."""
    more = {"truth": row.truth, "local": row.local, "difference": row.difference, "spread": row.spread}
    found = {name: None if item is None else asdict(item) for name, item in more.items()}
    return record(row) | found | {"amplification": row.amplification, "random": row.random}


def _operation(item: Operator, places: Mapping[int, int]) -> list[Any]:
    return [item.kind, item.text, None if item.row is None else places.get(id(item.row)), item.dtype]


def diff_to_json(found: DumpDiff, path: str | os.PathLike[str] | None = None) -> str:
    """Two dumps side by side, as JSON."""
    rows = [
        {"name": row.key.name, "iteration": row.key.iteration, "kind": row.key.kind} | asdict(row) for row in found.rows
    ]
    for row in rows:
        del row["key"]
    contents = {
        "filch_diff": _VERSION,
        "expected": found.expected,
        "actual": found.actual,
        "close": found.close,
        "headline": found.headline(),
        "rows": rows,
    }
    return written(json.dumps(plain(contents), indent=1), path)


def precision_to_json(report: PrecisionReport, path: str | os.PathLike[str] | None = None) -> str:
    """What lower precision costs, as JSON."""
    contents = {
        "filch_precision": _VERSION,
        "to": report.to,
        "backend": report.backend,
        "goal": asdict(report.goal),
        "close": report.close,
        "before": asdict(report.before),
        "after": None if report.after is None else asdict(report.after),
        "best": asdict(report.best),
        "keep": report.keep,
        "without": {name: asdict(outcome) for name, outcome in report.without.items()},
        "nodes": [_costs(item) for item in report.order],
        "runs": report.runs,
        "notes": report.notes,
    }
    return written(json.dumps(plain(contents), indent=1), path)


def _costs(item: Sensitivity) -> dict[str, Any]:
    own = {name: getattr(item.local, name) for name in ("error_max", "snr", "overflowed", "count")}
    alone = None if item.alone is None else asdict(item.alone)
    return {"node": item.node, "op": item.op, "module": item.module, "own": own, "alone": alone}


def to_csv(report: Report, path: str | os.PathLike[str] | None = None) -> str:
    """The rows of a report as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, *MEASURES])
    for row in report.rows:
        writer.writerow([for_csv(_text(value)) for value in record(row).values()])
    return written(text.getvalue(), path)


def to_markdown(report: Report, path: str | os.PathLike[str] | None = None) -> str:
    """The rows of a report as a Markdown table."""
    told = f"{report.program} on {report.backend} against {report.reference}: {report.headline()}."
    lines = [for_markdown(told), ""]
    columns = ["stage", "index", "kind", "operator", "module", "dtype", "error", "status"]
    lines += table(columns, map(_markdown_cells, report.rows))
    return written("\n".join(lines) + "\n", path)


def record(row: Row) -> dict[str, Any]:
    """A row as a flat dictionary: its attributes, then the measures of its difference."""
    measured = row.difference.measures if row.difference is not None and row.error is not None else {}
    return {name: getattr(row, name) for name in _COLUMNS} | {name: measured.get(name) for name in MEASURES}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else value


def _markdown_cells(row: Row) -> tuple[object, ...]:
    error = "" if row.error is None else f"{row.error:.1e}"
    return row.stage, row.index, row.kind, row.op, row.module or "", row.dtype or "", error, row.status


def written(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        write_output(path, text)
    return text
