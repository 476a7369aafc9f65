"""Tables of the rows of a report."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import TypeVar, get_args

from filch.steal.text._visible import short_line

from ..float64._verdict import RoundingVerdict
from ..rendering._table import (
    Block,
    Cell,
    Column,
    Columns,
    Fit,
    Table,
    attributes,
    fit_names,
    fit_paths,
    folded,
    hidden_text,
    lines_of,
    table_of,
    wrapped,
)
from ._rows import STAGES, ModelOperation, ModuleRow, NodeOutcome, OutcomeKind, Row

T = TypeVar("T")
ARROW = "<------"
_MARKS = {
    ARROW: "an error starts here",
    "inherited": "an error of its inputs",
    "suspect": "barely above rounding",
    "decision": "rounding decides; what depends on it is judged by the same decision",
    "follows": "changed by an earlier decision",
}
_STAGES = {"exported": "exported graph, node by node", "compiled": "compiled graph, as the backend optimized it"}


def node_table(rows: Sequence[Row], *, wide: bool) -> Iterable[Block]:
    """Yield a table of one graph's values, and how many constants it leaves out."""
    shown = rows if wide else [row for row in rows if row.kind != "constant" or row.diverged]
    if wide:
        omitted = {*([] if _is_timed(rows) else ["µs"]), *([] if _has_float64(rows) else _FLOAT64_COLUMNS)}
        yield table_of({title: get for title, get in _WIDE_COLUMNS.items() if title not in omitted}, shown)
    else:
        yield _short_table(shown)
    if hidden := len(rows) - len(shown):
        unjudged = sum(row.kind == "constant" and not row.judged for row in rows)
        result = f"{unjudged} of them not judged" if unjudged else "all the same"
        yield f"and {hidden} values that do not depend on the inputs, {result}"


_EXPONENT_FROM = 100  # larger multiples of rounding are written with an exponent
_MOST_LINES, _FEW_LINES = 4, 2  # with the name and the operators of a fused node


def _short_table(rows: Sequence[Row], *, brief: bool = False) -> Table:
    """Return a table of values of one graph for a terminal; a fused node has the operators that it computes below.

    With `brief`, it has no column for the kind, and fewer lines of these operators.
    """
    lines = _FEW_LINES if brief else _MOST_LINES
    before = {id(row): previous for previous, row in pairwise(rows)}

    def operator(row: Row) -> object:
        """Return the operator; for a further output of a fused node, the value."""
        previous = before.get(id(row))
        is_further = row.kind == "fused" and previous is not None and previous.node == row.node
        return f"  → {row.value}" if is_further else _operator(row)

    columns: Columns[Row] = {
        Column("", right=True): lambda row: row.index,
        **({} if brief else {Column("kind", optional=3): lambda row: row.kind}),
        Column("operator", partial(_fit_operators, lines=lines), least=8): operator,
        _MODULE: lambda row: row.value if row.kind == "output" else row.module,
        Column("dtype", optional=2): lambda row: row.dtype,
        Column("error", right=True): _error,
        **(_FLOAT64_COLUMNS if _has_float64(rows) else {}),
        **({Column("µs", right=True, optional=1): _microseconds} if _is_timed(rows) else {}),
        Column("attention"): _attention,
    }
    return table_of(columns, rows, marked=lambda row: row.diverged or row.introduced)


def legend(rows: Sequence[Row]) -> Iterable[Block]:
    """Yield an explanation of the columns and marks of the tables of some rows."""
    yield "error: the harmonic error"
    if _has_float64(rows):
        yield f"{_TIMES}: the distance from float64 as a multiple of the value's rounding error"
    if any(row.isolated is not None for row in rows):
        yield f"{_ALONE}: the same of the node alone, run on correct inputs"
    shown = {_attention(row) for row in rows}
    if marks := "; ".join(f"{mark}: {text}" for mark, text in _MARKS.items() if mark in shown):
        yield marks


def _operator(row: Row) -> object:
    """Return the operator, and for a fused node a second line with the operators that it computes."""
    if row.kind == "output":
        return "output"
    name = short_line(row.op.rpartition("::")[2])
    if row.kind != "fused":
        return name
    counts = Counter(row.operators)
    parts = " + ".join(f"{count}\N{NO-BREAK SPACE}{op}" if count > 1 else op for op, count in counts.items())
    return [name, f"  {short_line(parts)}"]


def _fit_operators(cells: Sequence[Cell], width: int, lines: int) -> Sequence[Cell]:
    """Return the name of each operator, and below it the operators fused into it."""
    names = fit_names([lines_of(cell)[0] for cell in cells], width)
    fused = [lines_of(cell)[1:] for cell in cells]
    inside = ([wrapped(text.strip(), width, indent="  ", lines=lines - 1) for text in texts] for texts in fused)
    return [(*lines_of(name), *chain.from_iterable(below)) for name, below in zip(names, inside, strict=True)]


def _fit_texts(cells: Sequence[Cell], width: int, names: Fit) -> Sequence[Cell]:
    """Return names in one line, shortened by `names`, and texts of several words in several lines."""
    return [
        text if " " in cell else name
        for cell, text, name in zip(cells, folded(cells, width), names(cells, width), strict=True)
    ]


def operator_tables(calls: Sequence[Sequence[ModelOperation]]) -> Iterable[Block]:
    """Yield tables of the model's own operations, one for each call."""
    for call, operators in enumerate(calls):
        if len(calls) > 1:
            yield f"call {call}"
        yield table_of(_OPERATION_COLUMNS, operators, numbers=("", 0))


def compiled_table(rows: Sequence[Row], *, wide: bool) -> Iterable[Block]:
    """Yield a table of the compiled graph's values in all calls of the model, if there are any."""
    if chosen := [row for row in rows if row.stage == "compiled"]:
        yield _STAGES["compiled"]
        yield from node_table(chosen, wide=wide)


def module_table(rows: Sequence[ModuleRow], *, wide: bool) -> Table:
    """Return a table of the modules' input and output tensors; only the outputs unless `wide`."""
    if wide:
        return table_of(_MODULE_COLUMNS, rows)
    columns: Columns[ModuleRow] = {
        Column("module", fit_paths, least=12, preferred=24): _output_path,
        Column("is", optional=1): lambda row: row.resolution,
        Column("value", partial(_fit_texts, names=fit_names)): lambda row: row.value or row.note,
        **{name: _MODULE_COLUMNS[name] for name in ("error", "attention")},
    }
    return table_of(columns, [row for row in rows if row.side == "output"])


def outcome_table(outcomes: Sequence[NodeOutcome], *, wide: bool) -> Iterable[Block]:
    """Yield the outcome of each exported node."""
    yield tally(outcomes)
    shown = outcomes if wide else [outcome for outcome in outcomes if outcome.kind != "folded"]
    yield table_of(_OUTCOME_COLUMNS, shown)
    yield from hidden_text(outcomes, len(shown), "that are folded into constants")


def tally(outcomes: Sequence[NodeOutcome]) -> str:
    """Return `of 81 exported nodes 40 survive, 35 are fused, 4 are folded, 2 are removed`."""
    count = Counter(outcome.kind for outcome in outcomes)
    verbs = {kind: "survive" if kind == "survives" else f"are {kind}" for kind in get_args(OutcomeKind)}
    counts = ", ".join(f"{count[kind]} {verb}" for kind, verb in verbs.items() if count[kind])
    return f"of {len(outcomes)} exported nodes {counts}"


def node_tables(rows: Sequence[Row], outcomes: Sequence[NodeOutcome], *, wide: bool) -> Iterable[Block]:
    """Yield tables of the values, one for each graph of each call."""
    for title, chosen in _rows_by_graph(rows):
        yield title
        if chosen[0].stage == "compiled" and any(outcome.kind != "survives" for outcome in outcomes):
            yield tally(outcomes)
        yield from node_table(chosen, wide=wide)


def precision_tables(rows: Sequence[Row], *, wide: bool) -> Iterable[Block]:
    """Yield tables of each value's signal-to-noise ratio and its overflowed, clipped and zeroed elements."""
    columns = _PRECISION_COLUMNS | ({"value": lambda row: row.value} if wide else {})
    for title, chosen in _rows_by_graph(rows):
        yield title
        yield table_of(columns, chosen if wide else [row for row in chosen if row.judged], skip_empty=not wide)


def excerpt_table(rows: Sequence[Row], center: Row, around: int) -> Iterable[Block]:
    """Yield a table of `center` and up to `around` rows of the same graph before and after it, and its legend."""
    same_graph = [row for row in rows if (row.call, row.stage) == (center.call, center.stage)]
    shown = surrounding([row for row in same_graph if row.kind != "constant" or row.diverged], center, around)
    yield _short_table(shown, brief=True)
    yield from legend(shown)


def surrounding(items: Sequence[T], item: T, around: int) -> Sequence[T]:
    """Return an item of a sequence, and up to `around` items before and after it."""
    index = next(index for index, other in enumerate(items) if other is item)
    return items[max(0, index - around) : index + around + 1]


def _rows_by_graph(rows: Sequence[Row]) -> Iterable[tuple[str, list[Row]]]:
    """Yield the rows of each graph of each call of the model that has rows, with the title of their table."""
    calls = sorted({row.call for row in rows})
    for call in calls:
        for stage in STAGES:
            chosen = [row for row in rows if row.call == call and row.stage == stage]
            if chosen:
                yield f"{_STAGES[stage]}{f', call {call}' if len(calls) > 1 else ''}", chosen


def _output_path(row: ModuleRow) -> str:
    """Return `m.layers.1.self_attn#1[0]`: the module, its second call, its first output."""
    return (row.path or "(model)") + (f"#{row.iteration}" if row.iteration else "") + row.port


def _error(row: Row) -> str:
    """Return the error; without one `shape` or `dtype`, whichever differs, else the status."""
    if row.error is not None:
        return f"{row.error:.1e}"
    properties = ("shape", "dtype") if row.diverged else ()
    return next((word for word in properties if row.reason.startswith(f"the {word} differs")), row.status)


def _microseconds(row: Row) -> str:
    return "" if row.seconds is None else f"{row.seconds * 1e6:.0f}"


def _attention(row: Row) -> str:
    """Return the mark of a row (see `_MARKS`); where the node did not run alone, each row that differs has an arrow."""
    if (row.decides or row.follows) and not row.introduced:
        return "decision" if row.decides else "follows"
    if row.isolated is None:
        return ARROW if row.diverged else ""
    if row.introduced:
        return ARROW
    return "inherited" if row.diverged else "suspect" if row.isolated.verdict == "suspicious" else ""


def _is_timed(rows: Iterable[Row]) -> bool:
    """Return whether the run time of nodes was measured."""
    return any(row.seconds is not None for row in rows)


def _has_float64(rows: Iterable[Row]) -> bool:
    """Return whether values, or nodes alone, were judged by their distance from float64."""
    return any(row.float64 is not None or row.isolated is not None for row in rows)


def rounding_ratio(verdict: RoundingVerdict | None) -> str:
    """Return the error as a multiple of rounding; `""` without a verdict."""
    if verdict is None:
        return ""
    return f"{verdict.ratio:.1f}" if verdict.ratio < _EXPONENT_FROM else f"{verdict.ratio:.0e}".replace("e+0", "e")


def _decibels(row: Row) -> str | None:
    """Return the signal-to-noise ratio; None if the numbers were not compared."""
    return f"{row.measures['snr']:.0f}" if row.measures else None


def _measure_columns(*, zeros: bool, **titles: str) -> Columns[Row]:
    """Return columns of measures (see `MEASURES`).

    Args:
        zeros: whether a measure that is 0 is shown; else its cell is empty.
        **titles: the titles of the columns, by measure.
    """

    def cell(measure: str, row: Row) -> float | None:
        number = row.measures.get(measure)
        return number if zeros or number else None

    return {title: partial(cell, measure) for measure, title in titles.items()}


_MODULE = Column("module", fit_paths, least=12, preferred=20)
_TIMES, _ALONE = "times rounding", "node alone"
_FLOAT64_COLUMNS: Columns[Row] = {
    Column(_TIMES, right=True): lambda row: rounding_ratio(row.float64),
    Column(_ALONE, right=True): lambda row: rounding_ratio(row.isolated),
}
_OPERATION_COLUMNS: Columns[ModelOperation] = {
    Column("kind", optional=2): lambda item: item.kind,
    Column("operator", partial(_fit_texts, names=fit_paths), preferred=24): lambda item: item.text,
    Column("dtype", optional=1): lambda item: item.row.dtype if item.row else item.dtype,
    Column("error", right=True): lambda item: (
        _error(item.row) if item.row else 0.0 if item.kind == "placeholder" else None
    ),
    Column("attention"): lambda item: item.row and _attention(item.row),
}
_PRECISION_COLUMNS: Columns[Row] = {
    "": lambda row: row.index,
    Column("operator", fit_names, optional=2): lambda row: row.op.rpartition("::")[2],
    Column("module or value", fit_paths, least=12, preferred=16): lambda row: row.module or row.value,
    Column("dtype", optional=1): lambda row: row.dtype,
    "SNR (dB)": _decibels,
    **_measure_columns(zeros=False, overflowed="overflowed", clipped="clipped", zeroed="zeroed"),
    "attention": _attention,
}
_WIDE_COLUMNS: Columns[Row] = {
    "": lambda row: row.index,
    "kind": lambda row: row.kind,
    "operator": lambda row: row.op,
    "computes": lambda row: row.operators if row.kind == "fused" else (),
    **attributes("node", "value", "module", "dtype"),
    "shape": lambda row: None if row.shape is None else str(list(row.shape)),
    **attributes("status", "error"),
    **_FLOAT64_COLUMNS,
    **_measure_columns(zeros=True, mean_error="mean error", absolute="absolute", relative="relative"),
    **_measure_columns(zeros=True, scale="to scale", rms="rms"),
    "SNR (dB)": _decibels,
    **_measure_columns(zeros=True, mismatched="differ", nonfinite="not finite"),
    **_measure_columns(zeros=True, overflowed="overflowed", clipped="clipped", zeroed="zeroed"),
    "evidence": lambda row: row.evidence,
    "µs": _microseconds,
    "attention": _attention,
    **attributes("reason", "source"),
}
_MODULE_COLUMNS: Columns[ModuleRow] = {
    "call": lambda row: row.call,
    "module": lambda row: row.path or "(model)",
    **attributes("iteration", "side", "port"),
    "is": lambda row: row.resolution,
    "value": lambda row: row.value or row.note,
    "error": lambda row: row.error,
    "attention": lambda row: ARROW if row.difference is not None and not row.difference.close else "",
    "note": lambda row: row.note,
}
_OUTCOME_COLUMNS: Columns[NodeOutcome] = {
    Column("exported node", fit_names, preferred=16): lambda outcome: outcome.node,
    Column("operator", fit_names, optional=1): lambda outcome: outcome.op,
    "becomes": lambda outcome: outcome.kind,
    Column("into", partial(_fit_texts, names=fit_names), preferred=16): lambda outcome: (
        ", ".join(outcome.into) or outcome.note
    ),
    Column("module", fit_paths, least=12, preferred=16): lambda outcome: outcome.module or "",
}
