"""The graphs of a report, annotated with its rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from filch.export import Finding, Graph, Node, PositionErrors, Value
from filch.export.backends import Stage

from ..float64._verdict import RoundingVerdict
from ._rows import STAGES, Row

RowKey = tuple[Stage, str, str]  # the stage, kind and value of a row


def picture(
    rows: Sequence[Row],
    graphs: Mapping[Stage, Graph],
    first: Row | None,
    positions: Mapping[RowKey, PositionErrors] | None = None,
) -> Graph:
    """Return the graph of the last stage, annotated with its rows and with the graph of the stage before as source.

    Args:
        rows: the rows of a report.
        graphs: by stage; the nodes of a stage without a graph are taken from the rows.
        first: the first divergence, which is marked.
        positions: what is known of the values of rows by position.
    """
    annotated: list[Graph] = []
    for stage in STAGES:
        of_stage = [row for row in rows if row.stage == stage]
        if stage in graphs or of_stage:
            graph = graphs.get(stage) or _graph_of_rows(of_stage)
            annotated.append(replace(graph, findings=_findings(of_stage, first, positions or {})))
    *before, last = annotated or [_graph_of_rows(())]
    return replace(last, source_graph=before[0] if before else None)


def _findings(
    rows: Iterable[Row], first: Row | None, positions: Mapping[RowKey, PositionErrors]
) -> dict[str, tuple[Finding, ...]]:
    """Return the findings of each value, by its name."""
    by_value: dict[str, list[Finding]] = {}
    for row in rows:
        found = replace(_finding(row, first=row is first), positions=positions.get((row.stage, row.kind, row.value)))
        by_value.setdefault(row.value, []).append(found)
    return {value: tuple(findings) for value, findings in by_value.items()}


def _finding(row: Row, *, first: bool) -> Finding:
    """Return what views show of a row; `first` is whether it is the first divergence."""
    others = {name: number for name, number in row.measures.items() if name != "error"}
    verdicts = {"times rounding": row.float64, "own times rounding": row.isolated}
    decided = _decided(row.float64)
    return Finding(
        status=row.status,
        call=row.call,
        kind=row.kind,
        error=row.error,
        first=first,
        text=row.amount if row.isolated is None else f"{row.amount}; by itself {row.isolated}",
        evidence=row.evidence,
        measures=others | {name: verdict.ratio for name, verdict in verdicts.items() if verdict is not None} | decided,
        seconds=row.seconds,
        reference=row.spread.expected if row.spread is not None else None,
        actual=row.spread.actual if row.spread is not None else None,
        histogram=row.spread.histogram if row.spread is not None else None,
    )


def _decided(verdict: RoundingVerdict | None) -> dict[str, float | int]:
    """Return the measures of decisions that differ, and of what follows from them."""
    if verdict is None:
        return {}
    flips = {} if verdict.flips is None else {"flips": verdict.flips.count, "margin": verdict.flips.margin}
    measures = flips | {"decided": verdict.decided}
    return {name: number for name, number in measures.items() if number is not None}


def _graph_of_rows(rows: Iterable[Row]) -> Graph:
    """Return a graph with the nodes of some rows, and without edges."""
    nodes: dict[str, Node] = {}
    values: dict[str, Value] = {}
    for row in rows:
        outputs = nodes[row.node].outputs if row.node in nodes else ()
        outputs = outputs if row.value in outputs else (*outputs, row.value)
        nodes[row.node] = Node(
            row.node, row.op, (), outputs, module=row.module, source=row.source, code=row.code, origins=row.origins
        )
        values[row.value] = Value(row.value, row.dtype, row.shape)
    return Graph("", (), (), (), tuple(nodes.values()), values)
