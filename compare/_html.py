"""Reports as an HTML page that needs nothing else: no script, no other file."""

import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from ._diff import DiffRow, DumpDiff
from ._rendering import cells
from ._report import Report, Row
from ._verdict import verdict

_STAGES = {"exported": "Exported graph, node by node", "compiled": "Compiled graph, as the backend optimised it"}
_TEMPLATE = "report.html.jinja"


def to_html(found: Report | DumpDiff, path: str | os.PathLike[str] | None = None) -> str:
    """A report, or two dumps side by side, as a page.

    Names come from models and files that nobody has looked at: all text is escaped, and the page forbids scripts.
    """
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        files(__package__).joinpath(_TEMPLATE).read_text("utf-8")
    )
    text = template.render(_of_report(found) if isinstance(found, Report) else _of_diff(found))
    if path is not None:
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")  # a name may be no valid Unicode
    return text


def _of_report(report: Report) -> dict[str, object]:
    stages = [(stage, [row for row in report.rows if row.stage == stage]) for stage in _STAGES]
    return {
        "title": f"{report.program} on {report.backend}, against {report.reference}",
        "lines": [report.headline(), *(f"note: {note}" for note in report.notes), *verdict(report)],
        "tables": [_table(_STAGES[stage], rows) for stage, rows in stages if rows],
    }


def _of_diff(found: DumpDiff) -> dict[str, object]:
    first = found.first_divergence
    lines = [found.headline(), f"the first that differs is {first}" if first else ""]
    return {
        "title": f"{found.actual} against {found.expected}",
        "lines": [line for line in lines if line],
        "tables": [_table("Records, in the order of the run", found.rows)],
    }


def _table(caption: str, rows: Sequence[Row | DiffRow]) -> dict[str, object]:
    lines = [cells(row) for row in rows]
    filled = [name for name in (lines[0] if lines else ()) if any(line[name] for line in lines)]
    return {
        "caption": caption,
        "columns": filled,
        "rows": [
            {"diverged": row.diverged, "cells": [line[name] for name in filled]}
            for row, line in zip(rows, lines, strict=True)
        ],
    }
