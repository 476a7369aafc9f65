"""The graphs of a report, with what was found drawn onto them."""

from collections.abc import Iterable
from dataclasses import replace

from filch.export import Finding, Graph, Node, Value
from filch.export.backends import Stage

from ._report import Report, Row
from ._verdict import in_short, random_numbers


def picture(report: Report) -> Graph:
    """The graph that a report is about (see `Report.graph`)."""
    drawn = [
        replace(_graph(report, stage), findings=_findings(report, stage))
        for stage in ("exported", "compiled")
        if stage in report.graphs or any(row.stage == stage for row in report.rows)
    ]
    title = f"{report.program} on {report.backend}, against {report.reference}"
    explained = [] if report.explanation is None else [str(report.explanation)]
    notes = [*(f"note: {note}" for note in report.notes), *random_numbers(report)]
    told = (report.headline(), *explained, *notes, " ".join(map(str.strip, in_short(report))))
    *before, last = drawn or [_of_rows(())]
    return replace(last, name=title, remarks=told, source_graph=before[0] if before else None)


def _findings(report: Report, stage: Stage) -> dict[str, tuple[Finding, ...]]:
    found: dict[str, list[Finding]] = {}
    for row in report.rows:
        if row.stage == stage:
            found.setdefault(row.value, []).append(_finding(row, first=row is report.first_divergence))
    return {value: tuple(findings) for value, findings in found.items()}


def _finding(row: Row, *, first: bool) -> Finding:
    measured = row.difference.measures if row.difference is not None and row.error is not None else {}
    judged = {"times rounding": row.truth, "own times rounding": row.local}
    text = str(row.difference) if row.difference is not None else row.reason
    return Finding(
        status=row.status,
        call=row.call,
        kind=row.kind,
        error=row.error,
        first=first,
        text=text if row.local is None else f"{text}; by itself {row.local}",
        evidence=row.evidence,
        measures=measured | {name: item.ratio for name, item in judged.items() if item is not None},
        seconds=row.seconds,
        expected=row.spread.expected if row.spread is not None else None,
        actual=row.spread.actual if row.spread is not None else None,
        histogram=row.spread.histogram if row.spread is not None else None,
    )


def _graph(report: Report, stage: Stage) -> Graph:
    return report.graphs.get(stage) or _of_rows(row for row in report.rows if row.stage == stage)


def _of_rows(rows: Iterable[Row]) -> Graph:
    """What rows say of a graph that is not known: nodes and no edges."""
    nodes: dict[str, Node] = {}
    values: dict[str, Value] = {}
    for row in rows:
        made = nodes[row.node].outputs if row.node in nodes else ()
        outputs = made if row.value in made else (*made, row.value)
        nodes[row.node] = Node(
            row.node, row.op, (), outputs, module=row.module, source=row.source, code=row.code, origins=row.origins
        )
        values[row.value] = Value(row.value, row.dtype, row.shape)
    return Graph("", (), (), (), tuple(nodes.values()), values)
