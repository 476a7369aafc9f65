"""`decoding_result`: the values that are wrong by position, from a comparison of a program that ran step by step."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from filch.export import PositionErrors

from ..float64._verdict import WRONG, Flips
from ..results._decoding import DecodeBreak, DecodeDecision, DecodePosition, Decoding, LayerErrors
from ..results._picture import RowKey, picture
from ..results._report import Report
from ..results._rows import STAGES, Row
from ._axes import StepSpans
from ._inherited import without_rounding
from ._positioned_row import PositionedRow
from ._stepwise import LOGITS, PRESENT, Stepwise


def decoding_result(  # noqa: PLR0917  called in one place
    model: nn.Module,
    run: Stepwise,
    report: Report,
    expected: torch.Tensor,
    kind: tuple[str, str],
    eager: tuple[float, bool],
) -> Decoding:
    """Return what a program computes step by step, from the comparison of its values.

    Args:
        model: the model.
        run: ran the program.
        report: the comparison.
        expected: the model's logits, float in the shape [sequences, length, words].
        kind: the kind of the cache, and the precision that the program was lowered to.
        eager: how far the model's own logits in steps are from those, and whether they are the same up to rounding.
    """
    rows = {(row.stage, row.kind, row.value): row for row in report.rows}
    records = _without_rounding(report, [item for key, item in run.records.items() if key in rows])
    length = expected.shape[1]
    wrong = [item for item in records if item.position is not None and rows[_key(item)].diverged]
    wrong_nodes = {item.row.value for item in wrong if item.row.kind != "output"}
    wrong = _ordered([x for x in wrong if x.row.kind != "output" or x.row.value not in wrong_nodes], run.spans)
    nodes = [item for item in records if item.row.kind != "output"]
    decisions = [found for item in nodes if (found := _decision(item, rows[_key(item)])) is not None]
    first_of = {item.value: item.position for item in decisions}
    records, nodes = ([_before_decisions(item, first_of) for item in items] for items in (records, nodes))
    outputs = {item.row.value: item for item in records if item.row.kind == "output"}
    actual = run.logits if run.logits is not None and run.logits.numel() == expected.numel() else None
    flips = _flips(actual, expected)
    logits = outputs.get(LOGITS)
    if logits is not None and logits.row.float64 is not None and not (logits.row.diverged or logits.row.follows):
        decisions += _tokens(actual, expected, logits.row)
    state = [item for name, item in outputs.items() if name.startswith(PRESENT)]
    positions = tuple(
        DecodePosition(
            position,
            run.spans.step_of(position),
            _largest(item.errors[position] for name, item in outputs.items() if name == LOGITS),
            _largest(item.errors[position] for item in state),
            _largest(item.errors[position] for item in records),
            *flips[position],
        )
        for position in range(length)
    )
    layers: dict[str, LayerErrors] = {}
    for item in nodes:
        name = item.row.module or ""
        layer = layers.get(name, LayerErrors(name, item.errors))
        places = {*layer.wrong, *(item.wrong if rows[_key(item)].diverged else ())}
        layers[name] = LayerErrors(name, tuple(map(max, layer.errors, item.errors)), tuple(sorted(places)))
    return Decoding(
        type(model).__name__,
        run.name,
        *kind,
        len(expected),
        run.first,
        positions,
        tuple(_break(item, rows[_key(item)]) for item in wrong),
        tuple(sorted(decisions, key=lambda item: item.position)),
        tuple(layers.values()),
        sum(row.judged for row in report.rows),
        len(report.rows),
        *eager,
        _unjudged(report.rows, {item.row.value for item in wrong}),
        report.failed,
        graph=picture(
            report.rows,
            report.graphs,
            rows[_key(wrong[0])] if wrong else None,
            {
                _key(item): PositionErrors(item.errors, item.wrong if rows[_key(item)].diverged else ())
                for item in records
            },
        ),
    )


def _without_rounding(report: Report, records: Sequence[PositionedRow]) -> list[PositionedRow]:
    """Return records without the positions at which only rounding differs; see `without_rounding`."""
    settled: dict[RowKey, PositionedRow] = {}
    for stage, graph in report.graphs.items():
        rows = {row.value: row for row in report.rows if row.stage == stage and row.kind != "output"}
        own = [item for item in records if item.row.stage == stage and item.row.kind != "output"]
        wrong = [item for item in own if item.position is not None and rows[item.row.value].diverged]
        settled |= {_key(item): item for item in without_rounding(graph, wrong, rows)}
    return [settled.get(_key(item), item) for item in records]


def _unjudged(rows: Iterable[Row], wrong: Collection[str]) -> dict[str, str]:
    """Return why outputs were not judged, by their names, except those that are known to be wrong."""
    unknown = (row for row in rows if row.kind == "output" and row.value not in wrong)
    return {
        row.value: row.reason or row.status if not row.judged else f"{row.status}, position unknown"
        for row in unknown
        if row.diverged or not row.judged
    }


def _ordered(wrong: Sequence[PositionedRow], spans: StepSpans) -> list[PositionedRow]:
    """Return wrong values by step and, in each, in the order of execution, which is that of cause and effect.

    Integers and masks may be wrong without an effect, such as the start of a window that hides nothing yet: they count
    from the first position at which a number is wrong.
    """

    def counts(item: PositionedRow) -> bool:
        return (item.row.dtype or "").startswith(("float", "bfloat")) or item.row.value.startswith(PRESENT)

    def step_of(item: PositionedRow) -> int:
        return spans.step_of(item.position or 0)

    shown = min((item.position or 0 for item in wrong if counts(item)), default=0)
    items = [item if counts(item) else replace(item, position=max(item.position or 0, shown)) for item in wrong]
    return sorted(items, key=lambda item: (step_of(item), STAGES.index(item.row.stage), item.row.index))


def _key(item: PositionedRow) -> RowKey:
    return item.row.stage, item.row.kind, item.row.value


def _decision(item: PositionedRow, row: Row) -> DecodeDecision | None:
    """Return a decision that is not the model's because rounding decides it; None if a value is none."""
    flips = None if row.float64 is None or row.diverged else row.float64.flips
    if flips is None or item.position is None:
        return None
    return DecodeDecision(item.position, item.sequence, row.node, row.op, row.value, row.module, flips)


def _before_decisions(item: PositionedRow, first_of: Mapping[str, int]) -> PositionedRow:
    """Return a row without the differences of decisions, and of positions from which on one before changes it."""
    verdict = item.row.float64
    is_changed = verdict is not None and (verdict.decided or 0.0) > WRONG * verdict.rounding
    follows = verdict.follows if verdict is not None and is_changed else ()
    first = min((first_of[name] for name in follows if name in first_of), default=len(item.errors))
    first = 0 if item.row.decides else first
    return replace(item, errors=tuple(0.0 if index >= first else error for index, error in enumerate(item.errors)))


def _tokens(logits: torch.Tensor | None, expected: torch.Tensor, row: Row) -> list[DecodeDecision]:
    """Return the choice of the next token as a decision, if it differs: all logits are right up to rounding."""
    verdict, values = row.float64, expected.double()
    if logits is None or verdict is None:
        return []
    chosen = logits.reshape(expected.shape).argmax(-1, keepdim=True)
    margins = (values.amax(-1, keepdim=True) - values.gather(-1, chosen))[..., 0]
    flipped = chosen[..., 0] != expected.argmax(-1)
    if not bool(flipped.any()):
        return []
    position, sequence = min((place, index) for index, place in flipped.nonzero().tolist())
    flips = Flips(int(flipped.sum()), flipped.numel(), float(margins[flipped].max()), 2 * verdict.rounding)
    return [DecodeDecision(position, sequence, row.node, "next token", row.value, row.module, flips)]


def _largest(values: Iterable[float]) -> float:
    return max(values, default=0.0)


def _break(item: PositionedRow, row: Row) -> DecodeBreak:
    return DecodeBreak(
        row.stage,
        item.position or 0,
        item.sequence,
        row.node,
        row.op,
        row.value,
        row.module,
        row.source,
        row.introduced,
        row.float64,
        row.index,
    )


def _flips(logits: torch.Tensor | None, expected: torch.Tensor) -> list[tuple[int, float | None]]:
    """Return in how many sequences the largest logit of each position is another one, and the model's largest margin.

    The margin is the difference of its two largest logits, relative to the root mean square of all.
    """
    if logits is None:
        return [(0, None)] * expected.shape[1]
    logits = logits.reshape(expected.shape)
    values = expected.double()
    top = values.topk(2, -1).values
    margins = (top[..., 0] - top[..., 1]) / values.square().mean().sqrt()
    flipped = logits.argmax(-1) != expected.argmax(-1)
    counts = flipped.sum(0).tolist()
    largest = torch.where(flipped, margins, 0.0).amax(0).tolist()
    return [(count, margin if count else None) for count, margin in zip(counts, largest, strict=True)]
