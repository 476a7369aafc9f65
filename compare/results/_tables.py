"""Reports as tables for a terminal."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import Protocol, TypeVar

from rich.table import Table
from rich.text import Text

from filch.steal.text import named

from .._diff import DiffRow, DumpDiff
from ..engine._node_outcomes import tally
from ..float64 import Judgement
from ..rendering._console import WIDE, as_text, plain_table
from ._report import ModuleRow, Operator, Report, Row
from ._verdict import random_numbers, verdict

T = TypeVar("T")
ARROW = "<------"


def render(report: Report, view: str = "nodes", *, wide: bool = False, width: int | None = None) -> str:
    """The report as text (see `Report.table`)."""
    if view not in _VIEWS:
        raise ValueError(f"there is no view {view!r}; there are {', '.join(_VIEWS)}")
    parts: list[Table | str] = [
        report.headline(),
        f"{report.program} on {report.backend}, against {report.reference}",
        *(f"note: {note}" for note in report.notes),
        *random_numbers(report),
    ]
    for table in _VIEWS[view](report, wide=wide):
        parts += ["", table]
    return as_text([*parts, "", *verdict(report)], width=WIDE if wide else width)


def render_diff(found: DumpDiff, *, wide: bool = False, width: int | None = None) -> str:
    """Two dumps side by side, as text."""
    first = found.first_divergence
    unjudged = next((row for row in found.rows if not row.judged), None)
    last = "all close" if found.close else "nothing could be judged"
    if first is not None:
        last = f"the first that differs is {first}"
    elif unjudged is not None and found.close:
        last = f"what was judged is close; the first that was not is {unjudged}"
    shown = found.rows if wide else [row for row in found.rows if row.diverged] or found.rows
    title = f"{found.headline()}: {found.actual} against {found.expected}"
    return as_text([title, "", _table(_DIFF_COLUMNS, shown), "", last], width=WIDE if wide else width)


def excerpt(found: Report | DumpDiff, *, around: int = 3, width: int = 80) -> str:
    """The first row that differs, and `around` rows before and after it, as text; `""` if none differs."""
    if found.first_divergence is None:
        return ""
    parts = _diff_excerpt(found, around) if isinstance(found, DumpDiff) else _node_excerpt(found, around)
    return as_text(parts, width=width)


def _node_excerpt(report: Report, around: int) -> Iterable[Table | str]:
    first = report.first_divergence
    near = [row for row in report.rows if first and (row.call, row.stage) == (first.call, first.stage)]
    shown = [row for row in near if row.kind != "constant" or row.diverged]
    return _node_table(_around(shown, first, around), wide=False)


def _diff_excerpt(found: DumpDiff, around: int) -> Iterable[Table | str]:
    return [_table(_DIFF_COLUMNS, _around(found.rows, found.first_divergence, around))]


def _around(rows: Sequence[T], first: T | None, around: int) -> Sequence[T]:
    index = next(index for index, row in enumerate(rows) if row is first)
    return rows[max(0, index - around) : index + around + 1]


def cells(row: DiffRow) -> dict[str, str]:
    """All columns of a row, by their titles, as text."""
    return {name: _cell(get(row)) for name, get in _DIFF_COLUMNS.items()}


def tell(text: str) -> None:
    """Print, for what is asked to print from inside of a library."""
    sys.stdout.write(f"{text}\n")


def render_operations(rows: Iterable[Sequence[str]]) -> str:
    """The operations of a torch graph as a table: opcode, name, target, args, kwargs."""
    table = plain_table()
    for title in ("opcode", "name", "target", "args", "kwargs"):
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return as_text([table], width=WIDE)


def _nodes(report: Report, *, wide: bool) -> Iterable[Table | str]:
    for title, rows in _by_graph(report):
        yield title
        if rows[0].stage == "compiled" and any(fate.how != "survives" for fate in report.fates):
            yield tally(report.fates)
        yield from _node_table(rows, wide=wide)


_STAGES = {"exported": "exported graph, node by node", "compiled": "compiled graph, as the backend optimised it"}


def _node_table(rows: Sequence[Row], *, wide: bool) -> Iterable[Table | str]:
    shown = rows if wide else [row for row in rows if row.kind != "constant" or row.diverged]
    timed = any(row.seconds is not None for row in rows)
    if wide:
        left = {*([] if timed else ["µs"]), *([] if _has_truth(rows) else ["off", "own"])}
        columns = {name: get for name, get in _WIDE_COLUMNS.items() if name not in left}
        yield _table(columns, shown)
    else:
        yield _short_table(shown, timed=timed)
    if hidden := len(rows) - len(shown):
        unjudged = sum(row.kind == "constant" and not row.judged for row in rows)
        judgement = f"{unjudged} of them not judged" if unjudged else "all the same"
        yield f"and {hidden} values that do not depend on the inputs, {judgement}"


_NARROW = 80
_LEAST = 12
_WIDTH = 21
_LONGEST = 3  # lines of what is fused into one node
_HUNDRED = 100


def _short_table(rows: Sequence[Row], *, timed: bool) -> Table:
    """A table of at most `_NARROW` characters: what the other columns leave is shared by operators and modules."""
    columns: dict[str, Callable[[Row], str]] = {
        "": lambda row: str(row.index),
        "kind": lambda row: row.kind,
        "operator": lambda row: row.op,
        "module": lambda row: row.value if row.kind == "output" else row.module or "",
        "dtype": lambda row: row.dtype or "",
        "error": _error,
        **({"off": _off, "own": _own} if _has_truth(rows) else {}),
        **({"µs": _microseconds} if timed else {}),
        "attention": _arrow,
    }
    shared = {"operator", "module"}
    others = [max(map(len, (title, *map(get, rows)))) for title, get in columns.items() if title not in shared]
    width = min(_WIDTH, max(_LEAST, (_NARROW - sum(others) - len(columns) + 1) // 2))
    table = plain_table()
    for title in columns:
        least = width if title in shared else None
        table.add_column(title, no_wrap=title != "operator", overflow="fold", min_width=least, max_width=least)
    before = None
    for row in rows:
        texts: dict[str, Text | str] = {title: get(row) for title, get in columns.items()}
        texts["operator"] = _operator(row, width, repeated=before is not None and before.node == row.node)
        texts["module"] = abbreviated(columns["module"](row), width)
        table.add_row(*texts.values())
        before = row
    return table


def _operator(row: Row, width: int, *, repeated: bool) -> Text | str:
    """The operator, and below it what is fused into it; another value of the same node has its name alone."""
    name = "" if row.kind == "output" else named(row.op.rpartition("::")[2])
    if row.kind != "fused":
        return Text(_in_two_lines(name, width))
    if repeated:
        return f"  → {abbreviated(row.value, width - 4)}"
    counts = Counter(row.operators)
    parts = named(" + ".join(f"{count}\N{NO-BREAK SPACE}{op}" if count > 1 else op for op, count in counts.items()))
    inside = wrap(parts, width, initial_indent="  ", subsequent_indent="  ", max_lines=_LONGEST, placeholder=" …")
    return Text("\n".join([_in_two_lines(name, width), *inside]))


def _in_two_lines(name: str, width: int) -> str:
    """A name as it is, or its beginning and its end: kernels are told apart by their last number."""
    if len(name) <= 2 * width:
        return name
    return f"{name[:width]}\n…{name[1 - width :]}"


def _operators(report: Report, *, wide: bool) -> Iterable[Table | str]:
    for call, operators in enumerate(report.operators):
        if len(report.operators) > 1:
            yield f"call {call}"
        table = plain_table()
        for title in ("", "kind", "operator"):
            table.add_column(title, no_wrap=wide, overflow="fold")
        for title in ("dtype", "error", "attention"):
            table.add_column(title, no_wrap=True)
        for index, item in enumerate(operators):
            table.add_row(str(index), item.kind, item.text, *_judgement(item))
        yield table


def _dynamo(report: Report, *, wide: bool) -> Iterable[Table | str]:
    yield from _operators(report, wide=wide)
    rows = [row for row in report.rows if row.stage == "compiled"]
    if rows:
        yield _STAGES["compiled"]
        yield from _node_table(rows, wide=wide)


def _judgement(item: Operator) -> tuple[str, str, str]:
    if item.row is None:
        return (item.dtype, "0.0e+00" if item.kind == "placeholder" else "", "")
    return (item.row.dtype or "", _error(item.row), _arrow(item.row))


def _modules(report: Report, *, wide: bool) -> Iterable[Table | str]:
    if wide:
        yield _table(_MODULE_COLUMNS, report.modules)
        return
    given = [row for row in report.modules if row.side == "output"]
    columns = {"module": _place} | {name: _MODULE_COLUMNS[name] for name in ("is", "value", "error", "attention")}
    yield _table(columns, given)


def _fates(report: Report, *, wide: bool) -> Iterable[Table | str]:
    if not report.fates:
        yield f"{report.backend} made no graph of its own of the program"
        return
    yield tally(report.fates)
    shown = report.fates if wide else [fate for fate in report.fates if fate.how != "folded"]
    yield _table(_FATE_COLUMNS, shown)
    if hidden := len(report.fates) - len(shown):
        yield f"and {hidden} that are folded into constants"


def _precision(report: Report, *, wide: bool) -> Iterable[Table | str]:
    for title, rows in _by_graph(report):
        yield title
        shown = rows if wide else [row for row in rows if row.judged]
        yield _table(_PRECISION_COLUMNS if not wide else _PRECISION_COLUMNS | {"value": lambda row: row.value}, shown)


def _by_graph(report: Report) -> Iterable[tuple[str, list[Row]]]:
    calls = sorted({row.call for row in report.rows})
    for call in calls:
        for stage in ("exported", "compiled"):
            rows = [row for row in report.rows if row.call == call and row.stage == stage]
            if rows:
                yield f"{_STAGES[stage]}{f', call {call}' if len(calls) > 1 else ''}", rows


def _place(row: ModuleRow) -> str:
    """`m.layers.1.self_attn#1[0]`: the module, its second call, its first result; in 36 characters if that can be."""
    port = (f"#{row.iteration}" if row.iteration else "") + row.port
    return abbreviated(row.path or "(model)", max(12, 36 - len(port))) + abbreviated(port, 24)


def _table(columns: dict[str, Callable[..., object]], rows: Iterable[object]) -> Table:
    table = plain_table()
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(get(row)) for get in columns.values()))
    return table


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1e}"
    return " + ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _error(row: Row) -> str:
    return f"{row.error:.1e}" if row.error is not None else _unlike(row) if row.diverged else row.status


def _unlike(row: Row) -> str:
    """`shape` or `dtype`, whichever differs."""
    return next((word for word in ("shape", "dtype") if row.reason.startswith(f"the {word} differs")), row.status)


def _microseconds(row: Row) -> str:
    return "" if row.seconds is None else f"{row.seconds * 1e6:.0f}"


def _arrow(row: Row) -> str:
    """What needs attention; what is wrong because it is made of what is wrong needs less."""
    if row.local is None:
        return ARROW if row.diverged else ""
    if row.introduced:
        return ARROW
    return "inherited" if row.diverged else "suspect" if row.local.verdict == "suspicious" else ""


def _has_truth(rows: Iterable[Row]) -> bool:
    return any(row.truth is not None or row.local is not None for row in rows)


def _off(row: Row) -> str:
    return _times(row.truth)


def _own(row: Row) -> str:
    return _times(row.local)


def _times(judgement: Judgement | None) -> str:
    """How many times its rounding a value is off."""
    if judgement is None:
        return ""
    return f"{judgement.ratio:.1f}" if judgement.ratio < _HUNDRED else f"{judgement.ratio:.0e}".replace("e+0", "e")


def abbreviated(path: str, size: int) -> str:
    """A path in `size` characters: its first steps shrink to a letter each, the last ones stay.

    >>> abbreviated("model.layers.3.self_attn.q_proj", 20)
    'm.l.3.s.q_proj'
    """
    steps = named(path).split(".")
    for index in range(len(steps) - 1):
        if len(".".join(steps)) <= size:
            break
        steps[index] = steps[index] if steps[index].isdigit() else steps[index][:1]
    short = ".".join(steps)
    return short if len(short) <= size else "…" + short[-(size - 1) :]


def _measure(name: str) -> Callable[[Row], object]:
    def get(row: Row) -> object:
        return None if row.error is None else getattr(row.difference, name)

    return get


def _decibels(row: Row) -> str | None:
    return None if row.error is None or row.difference is None else f"{row.difference.snr:.0f}"


def _count(name: str) -> Callable[[Row], object]:
    return lambda row: _measure(name)(row) or None


_PRECISION_COLUMNS: dict[str, Callable[..., object]] = {
    "": lambda row: row.index,
    "operator": lambda row: abbreviated(row.op.rpartition("::")[2], _WIDTH),
    "module or value": lambda row: abbreviated(row.module or row.value, _WIDTH),
    "dtype": lambda row: row.dtype,
    "SNR (dB)": _decibels,
    "overflowed": _count("overflowed"),
    "clipped": _count("clipped"),
    "zeroed": _count("zeroed"),
    "attention": _arrow,
}
_WIDE_COLUMNS: dict[str, Callable[..., object]] = {
    "": lambda row: row.index,
    "kind": lambda row: row.kind,
    "operator": lambda row: row.op,
    "computes": lambda row: row.operators if row.kind == "fused" else (),
    "node": lambda row: row.node,
    "value": lambda row: row.value,
    "module": lambda row: row.module,
    "dtype": lambda row: row.dtype,
    "shape": lambda row: None if row.shape is None else str(list(row.shape)),
    "status": lambda row: row.status,
    "error": _measure("error_max"),
    "off": _off,
    "own": _own,
    "mean error": _measure("error_mean"),
    "absolute": _measure("absolute"),
    "relative": _measure("relative"),
    "to scale": _measure("scale"),
    "rms": _measure("rms"),
    "SNR (dB)": _decibels,
    "differ": _measure("mismatched"),
    "not finite": _measure("nonfinite"),
    "overflowed": _measure("overflowed"),
    "clipped": _measure("clipped"),
    "zeroed": _measure("zeroed"),
    "evidence": lambda row: row.evidence,
    "µs": _microseconds,
    "attention": _arrow,
    "reason": lambda row: row.reason,
    "source": lambda row: row.source,
}
_MODULE_COLUMNS: dict[str, Callable[..., object]] = {
    "call": lambda row: row.call,
    "module": lambda row: row.path or "(model)",
    "iteration": lambda row: row.iteration,
    "side": lambda row: row.side,
    "port": lambda row: row.port,
    "is": lambda row: row.how,
    "value": lambda row: row.value or row.note,
    "error": lambda row: None if row.difference is None or row.difference.problem else row.difference.error_max,
    "attention": lambda row: ARROW if row.difference is not None and not row.difference.close else "",
    "note": lambda row: row.note,
}
_FATE_COLUMNS: dict[str, Callable[..., object]] = {
    "exported node": lambda fate: fate.node,
    "operator": lambda fate: fate.op,
    "becomes": lambda fate: fate.how,
    "into": lambda fate: ", ".join(fate.into) or fate.note,
    "module": lambda fate: fate.module,
}
_DIFF_COLUMNS: dict[str, Callable[..., object]] = {
    "value": lambda row: f"{row.key.label}{row.path}",
    "is": lambda row: row.what,
    "error": lambda row: None if row.difference is None or row.difference.problem else row.difference.error_max,
    "attention": lambda row: ARROW if row.diverged else "",
    "reason": lambda row: row.reason or (row.difference.problem if row.difference else None),
}


class _View(Protocol):
    """What makes the tables of a report."""

    def __call__(self, report: Report, *, wide: bool) -> Iterable[Table | str]: ...


_VIEWS: dict[str, _View] = {
    "nodes": _nodes,
    "operators": _operators,
    "modules": _modules,
    "fates": _fates,
    "dynamo": _dynamo,
    "precision": _precision,
}
