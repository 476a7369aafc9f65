"""The errors after each pass, as text for a terminal and as JSON."""

import json
import math
from typing import Any

from rich.text import Text

from filch.steal.text import named

from ..rendering._console import as_text, plain_table
from ._pass_row import PassErrors, PassRow
from ._tables import ARROW


def render_passes(found: PassErrors, *, width: int | None = None) -> str:
    """A line for each pass, and below them which one does harm.

    Args:
        found: what there is to say of a run.
        width: characters in a line; None is the terminal's.
    """
    table = plain_table()
    table.add_column("pass")  # the one that may be cut
    for title in ("nodes", "error", "diverge", "judged", "seconds", ""):
        table.add_column(title, no_wrap=True, justify="right")
    for row in found.rows:
        name = Text(named(row.name), no_wrap=True, overflow="ellipsis")
        table.add_row(name, *_cells(row, found.culprit))
    return as_text([table, "", *verdict(found)], width=width)


def verdict(found: PassErrors) -> list[str]:
    """Which pass does harm, and what else a reader has to know, a sentence each."""
    rows = found.rows
    if not rows:
        return ["no pass ran"]
    lines = [_told(found)]
    lowered = next((row for row in rows if row.lower_precision), None)
    if lowered is not None:
        lines.append(f"from {lowered.name} on, values of a lower precision were allowed")
    last = rows[-1]
    if last.judged < last.values:
        lines.append(f"after {last.name}, {last.values - last.judged} of {last.values} values could not be judged")
    return lines


def to_json(found: PassErrors) -> str:
    """An object for each pass, and the name of the one that does harm; what JSON has no number for is a string."""
    culprit = None if found.culprit is None else found.culprit.name
    record = {"passes": [_record(row) for row in found.rows], "culprit": culprit, "close": found.close}
    return json.dumps(record, indent=1)


def _told(found: PassErrors) -> str:
    culprit, origin = found.culprit, found.rows[0]
    if culprit is not None and culprit.introduced is not None:
        return f"{culprit.name}, pass {culprit.index}, introduces the error: {culprit.introduced}"
    if culprit is not None:
        return f"{culprit.name}, pass {culprit.index}, fails: {culprit.failure}"
    first = None if origin.report is None else origin.report.first_divergence
    if first is not None:
        return f"no pass introduces an error; the program as it was given differs: {first}"
    return "no pass introduces an error" + (f"; Origin can't be judged: {origin.failure}" if origin.failure else "")


def _cells(row: PassRow, culprit: PassRow | None) -> tuple[str, ...]:
    numbers = (str(row.diverged), f"{row.judged}/{row.values}") if row.report is not None else ("?", "?")
    error = "" if row.error is None else f"{row.error:.1e}"
    seconds = "" if row.seconds is None else f"{row.seconds:.3f}"
    return str(row.nodes), error, *numbers, seconds, ARROW if row is culprit else ""


def _record(row: PassRow) -> dict[str, Any]:
    error = row.error
    return {
        "index": row.index,
        "name": row.name,
        "nodes": row.nodes,
        "error": error if error is None or math.isfinite(error) else str(error),
        "diverged": row.diverged,
        "judged": row.judged,
        "values": row.values,
        "seconds": row.seconds,
        "introduced": None if row.introduced is None else str(row.introduced),
        "failure": row.failure,
        "lower_precision": row.lower_precision,
    }
