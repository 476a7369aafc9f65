"""What several comparisons came to, as text, JSON and Markdown."""

import json
import math
from collections.abc import Sequence
from typing import Any

from ..rendering._console import as_text, plain_table
from ..rendering._markdown import table
from ._cell import Cell

_LONGEST = 24
_ABSENT = ("failed", "missing")


def to_text(cells: Sequence[Cell], *, width: int = 80) -> str:
    """A line for each, none longer than `width`, and below them in full why some could not be compared."""
    shown = plain_table(expand=True)
    for title in (*_titles(cells), "error"):
        texts = [title, *(cell.labels.get(title, _error(cell)) for cell in cells)]
        shown.add_column(title, no_wrap=True, min_width=min(_LONGEST, max(map(len, texts))) + 1)
    shown.add_column("first divergence", no_wrap=True, overflow="ellipsis", ratio=1)
    for cell in cells:
        labels = [_shortened(text) for text in cell.labels.values()]
        told = f"{cell.status}: {cell.told}" if cell.status in _ABSENT else cell.told
        shown.add_row(*labels, _error(cell), told or "all close")
    reasons = dict.fromkeys(cell.told for cell in cells if cell.status in _ABSENT)
    return as_text([shown, *(part for reason in reasons for part in ("", reason))], width=width)


def to_json(cells: Sequence[Cell]) -> str:
    """An object for each; what JSON has no number for (inf, NaN) is a string."""
    return json.dumps([_record(cell) for cell in cells], indent=1)


def to_markdown(cells: Sequence[Cell]) -> str:
    """A row for each."""
    rows = [(*cell.labels.values(), cell.status, _error(cell), cell.told) for cell in cells]
    return "\n".join(table([*_titles(cells), "status", "error", "first divergence"], rows))


def _record(cell: Cell) -> dict[str, Any]:
    worst = cell.worst
    number = worst if worst is None or math.isfinite(worst) else str(worst)
    return cell.labels | {"status": cell.status, "worst": number, "told": cell.told}


def _titles(cells: Sequence[Cell]) -> list[str]:
    return list(cells[0].labels) if cells else []


def _error(cell: Cell) -> str:
    return "" if cell.worst is None else f"{cell.worst:.1e}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"…{text[-_LONGEST + 1 :]}"
