"""What a bisection found, as text for a terminal, and as JSON."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.table import Table

from filch.export.backends import Switch

from ..precision._trial import Outcome
from ..rendering._console import WIDE, as_text, plain_table
from ..results._formats import VERSION, plain, written
from ._report import BisectReport, Culprit, Step, Version

_NARROW = 40
_SHOWN = 20  # steps, and culprits


def render_bisect(report: BisectReport, *, wide: bool = False, width: int | None = None) -> str:
    """The report as text: each run, then what is to blame.

    Args:
        report: what was found.
        wide: all runs, culprits and names; else as many as there is room for.
        width: characters in a line; None is the terminal's.
    """
    judged = "the outputs" if report.value is None else report.value
    counted = f"{_count(len(report.candidates), 'candidate')}, {_count(report.runs, 'run')}"
    parts: list[Table | str] = [
        f"{report.program} on {report.backend} against {report.reference}: {judged}; {counted}",
        *(f"note: {note}" for note in report.notes),
        "",
        _table(report, wide=wide),
        "",
        *_verdict(report, _SHOWN if not wide else len(report.culprits)),
        *(f"{_where(one)}: {_told(one.outcome)}" for one in report.versions),
    ]
    return as_text(parts, width=WIDE if wide else width)


def to_json(report: BisectReport, path: str | os.PathLike[str] | None = None) -> str:
    """The report as JSON; what JSON has no number for is a string."""
    contents = {"filch_bisect": VERSION, "close": report.close, "runs": report.runs, **asdict(report)}
    return written(json.dumps(plain(contents), indent=1), path)


def _table(report: BisectReport, *, wide: bool) -> Table:
    table = plain_table()
    for title in ("run", "left out", "error", "SNR", "nodes", "graph"):
        table.add_column(title, overflow="fold", no_wrap=title != "left out")
    left = 0 if wide else max(0, len(report.steps) - _SHOWN)
    for number, step in enumerate(report.steps, 1):
        if _SHOWN // 2 < number <= _SHOWN // 2 + left:
            if number == _SHOWN // 2 + 1:
                table.add_row("…", f"{left} more")
            continue
        count = sum((step.ops or {}).values())
        cells = _left_out(step, report.candidates, wide=wide), *_figures(step.outcome), str(count), step.fingerprint[:8]
        table.add_row(str(number), *cells)
    return table


def _left_out(step: Step, candidates: Sequence[Switch], *, wide: bool) -> str:
    names = ", ".join(one.name for one in step.off)
    if wide or len(names) <= _NARROW:
        return names or "nothing"
    if len(step.off) == len(candidates):
        return "all"
    if len(step.off) == 1:
        return names
    return f"{len(step.off)}: {step.off[0].name} … {step.off[-1].name}"


def _figures(outcome: Outcome) -> tuple[str, str]:
    if outcome.problem:
        return "can't be judged", ""
    return f"{outcome.error:.1e}{'' if outcome.passes else ' !'}", f"{outcome.snr:.0f}"


def _verdict(report: BisectReport, shown: int) -> list[str]:
    if report.close:
        return [f"nothing to blame: with everything as it is, {report.before}"]
    if not report.candidates:
        return [f"there is an error ({report.before}), and nothing that could be left out changed the graph"]
    if report.after is None:
        return [
            f"no culprit among them: {report.before}; with all of them left out, {report.best}",
            "The difference is in the program that was exported, or in the kernels that run it.",
        ]
    count = "this one is" if len(report.culprits) == 1 else f"these {len(report.culprits)} together are"
    lines = [f"with everything as it is: {report.before}", f"{count} left out: {report.after}"]
    for culprit in report.culprits[:shown]:
        lines.append(f"  {culprit.kind} {culprit.name}: {_change(culprit)}")
        if len(report.culprits) > 1:
            lines.append(f"    (without the others, but with it: {culprit.without})")
    return [*lines, f"  and {len(report.culprits) - shown} more"] if len(report.culprits) > shown else lines


def _where(one: Version) -> str:
    return f"version {one.version} in {one.interpreter}" if one.version else one.interpreter


def _told(outcome: Outcome) -> str:
    return f"{outcome}{'' if outcome.passes or outcome.problem else ', not close'}"


def _change(culprit: Culprit) -> str:
    on, off = culprit.nodes
    parts = [_ops(culprit.appears, "brings in"), _ops(culprit.disappears, "takes out")]
    told = "; ".join(filter(None, parts)) or "the same operators in another order, or of other numbers"
    return f"{told} ({_count(on, 'node')} with it, {off} without)"


def _ops(counts: Mapping[str, int], verb: str) -> str:
    listed = ", ".join(f"{count} {op.rpartition('::')[2]}" for op, count in counts.items())
    return f"{verb} {listed}" if counts else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
