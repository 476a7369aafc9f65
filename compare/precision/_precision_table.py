"""What lower precision costs, as text for a terminal."""

from rich.table import Table

from ..rendering._console import WIDE, as_text, plain_table
from ..results._tables import abbreviated
from ._precision import PrecisionReport
from ._sensitivity import Sensitivity

_SHOWN = 10
_NARROW = 22


def render_precision(report: PrecisionReport, *, wide: bool = False, width: int | None = None) -> str:
    """The report as text: what each node costs, which ones to keep, and what that brings.

    Args:
        report: what was found.
        wide: all nodes, nothing cut; else the ten that cost most.
        width: characters in a line; None is the terminal's.
    """
    parts: list[Table | str] = [
        f"{len(report.order)} nodes in {report.to} on {report.backend}; {report.runs} programs were run",
        *(f"note: {note}" for note in report.notes),
        "",
        _table(report.order if wide else report.order[:_SHOWN], wide=wide),
    ]
    if not wide and len(report.order) > _SHOWN:
        parts.append(f"and {len(report.order) - _SHOWN} that cost less")
    return as_text([*parts, "", *_verdict(report)], width=WIDE if wide else width)


def _table(rows: tuple[Sensitivity, ...], *, wide: bool) -> Table:
    table = plain_table()
    for title in ("node", "operator", "module", "own SNR", "overflow", "outputs' error", "SNR"):
        table.add_column(title, overflow="fold", no_wrap=title in ("own SNR", "overflow", "SNR"))
    for row in rows:
        names = (row.node, row.op.rpartition("::")[2], row.module or "")
        own = (_decibel(row.local.snr), str(row.local.overflowed or ""))
        outputs = ("", "") if row.alone is None else (f"{row.alone.error:.1e}", _decibel(row.alone.snr))
        table.add_row(*(name if wide else abbreviated(name, _NARROW) for name in names), *own, *outputs)
    return table


def _decibel(snr: float) -> str:
    return f"{snr:.0f}"


def _verdict(report: PrecisionReport) -> list[str]:
    if report.close:
        return [f"no node has to be kept in float32: {report.before}; the goal is {report.goal}"]
    if report.after is None:
        return [f"no list of nodes helps: with all of them in float32, {report.best}; the goal is {report.goal}"]
    count = "this node is" if len(report.keep) == 1 else f"these {len(report.keep)} nodes are"
    lines = [f"all lowered: {report.before}", f"{count} kept in float32: {report.after}"]
    lines += [f"  {name}  (lowered too: {report.without[name]})" for name in report.keep]
    return [*lines, f"the goal is {report.goal}; without any of them it is missed"]
