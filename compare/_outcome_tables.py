"""What several comparisons came to, as text, JSON and Markdown."""

import io
import json
import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ._markdown import table
from ._outcome import Outcome

_LONGEST = 24
_ABSENT = ("failed", "missing")


def to_text(outcomes: Sequence[Outcome], *, width: int = 80) -> str:
    """A line for each, none longer than `width`, and below them in full why some could not be compared."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    shown = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, padding=0, show_edge=False, expand=True)
    for title in (*_titles(outcomes), "error"):
        cells = [title, *(outcome.labels.get(title, _error(outcome)) for outcome in outcomes)]
        shown.add_column(title, no_wrap=True, min_width=min(_LONGEST, max(map(len, cells))) + 1)
    shown.add_column("first divergence", no_wrap=True, overflow="ellipsis", ratio=1)
    for outcome in outcomes:
        cells = [_shortened(text) for text in outcome.labels.values()]
        told = f"{outcome.status}: {outcome.told}" if outcome.status in _ABSENT else outcome.told
        shown.add_row(*map(Text, (*cells, _error(outcome), told or "all close")))
    console.print(shown)
    for reason in dict.fromkeys(outcome.told for outcome in outcomes if outcome.status in _ABSENT):
        console.print()
        console.print(Text(reason))
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().splitlines())  # type: ignore[attr-defined]


def to_json(outcomes: Sequence[Outcome]) -> str:
    """An object for each; what JSON has no number for (inf, NaN) is a string."""
    return json.dumps([_record(outcome) for outcome in outcomes], indent=1)


def to_markdown(outcomes: Sequence[Outcome]) -> str:
    """A row for each."""
    rows = [(*outcome.labels.values(), outcome.status, _error(outcome), outcome.told) for outcome in outcomes]
    return "\n".join(table([*_titles(outcomes), "status", "error", "first divergence"], rows))


def _record(outcome: Outcome) -> dict[str, Any]:
    worst = outcome.worst
    number = worst if worst is None or math.isfinite(worst) else str(worst)
    return outcome.labels | {"status": outcome.status, "worst": number, "told": outcome.told}


def _titles(outcomes: Sequence[Outcome]) -> list[str]:
    return list(outcomes[0].labels) if outcomes else []


def _error(outcome: Outcome) -> str:
    return "" if outcome.worst is None else f"{outcome.worst:.1e}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"…{text[-_LONGEST + 1 :]}"
