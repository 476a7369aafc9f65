"""What one of several comparisons came to."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from filch.steal import FilchError

from .._compare_export import OPTIMIZED
from ._report import Report


@dataclass(frozen=True)
class Cell:
    """What one of several comparisons came to.

    Attributes:
        labels: what tells it from the others, by the title of the column.
        status: `close`, `different`, `failed` (it could not be compared) or `missing` (the backend or device is not
            there); the last two are never a pass.
        worst: the largest harmonic error, where something was judged.
        told: the first divergence, why there is no comparison, or how many values of a close one were not judged, and
            why it is the exporter's optimised program.
    """

    labels: dict[str, str]
    status: Literal["close", "different", "failed", "missing"]
    worst: float | None = None
    told: str = ""


def cell_of(labels: dict[str, str], run: Callable[[], Report]) -> Cell:
    """What a comparison comes to."""
    try:
        report = run()
    except FilchError as error:
        return Cell(labels, "failed", None, str(error))
    worst = None if report.worst is None else report.worst.error
    if report.first_divergence is not None:
        return Cell(labels, "different", worst, str(report.first_divergence))
    if report.interface:
        return Cell(labels, "different", worst, report.interface[0])
    if not report.close:
        return Cell(labels, "failed", worst, report.headline())
    judged = [row.judged for row in report.rows if row.kind != "constant"]
    without = f"{judged.count(False)} of {len(judged)} values could not"
    told = [] if all(judged) else [f"all that could be judged is close, {without}"]
    told += [note for note in report.notes if note.startswith(OPTIMIZED)]
    return Cell(labels, "close", worst, "; ".join(told))


def exit_code(cells: Iterable[Cell]) -> int:
    """0 if all are close, 1 if one differs; else 2, as one is missing or failed, or there is none."""
    found = {cell.status for cell in cells}
    return 1 if "different" in found else 0 if found == {"close"} else 2
