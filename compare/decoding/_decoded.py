"""`decoding_result`: the values that are wrong by position, from a comparison of a program that ran step by step."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from filch.export import Graph, PositionErrors

from ..float64._verdict import WRONG, Flips
from ..locating._first_wrong import inherited_starts
from ..results._decoding import DecodeBreak, DecodeDecision, DecodePosition, Decoding, LayerErrors
from ..results._picture import RowKey, picture
from ..results._report import Report
from ..results._rows import STAGES, Row
from ._axes import Steps
from ._positioned_row import PositionedRow
from ._stepwise import LOGITS, PRESENT, Stepwise


def decoding_result(
    model: nn.Module,
    run: Stepwise,
    report: Report,
    expected: torch.Tensor,
    *,
    cache: str,
    to: str,
    eager: float,
    consistent: bool,
) -> Decoding:
    """Return what a program computes step by step, from the comparison of its values.

    Args:
        model: the model.
        run: ran the program.
        report: the comparison.
        expected: the model's logits, float in the shape [sequences, length, words].
        cache: see `Decoding`.
        to: see `Decoding`.
        eager: see `Decoding`.
        consistent: see `Decoding`.
    """
    records = _records(run, report)
    wrong = _in_causal_order(_wrong_values(records), run.steps)
    decisions = [found for item in records if (found := _decision(item)) is not None]
    first_positions = {item.value: item.position for item in decisions}
    records = [_before_decisions(item, first_positions) for item in records]
    logits = run.logits
    logits = None if logits is None or logits.numel() != expected.numel() else logits.reshape(expected.shape)
    outputs = {item.row.value: item for item in records if item.row.kind == "output"}  # of the last stage
    if LOGITS in outputs and (found := _token_decision(outputs[LOGITS], logits, expected)) is not None:
        decisions.append(found)
    return Decoding(
        model=type(model).__name__,
        backend=run.name,
        cache=cache,
        to=to,
        sequences=len(expected),
        prefill=run.first,
        positions=_positions(records, outputs, run.steps, _flips(logits, expected)),
        breaks=tuple(map(_break, wrong)),
        decisions=tuple(sorted(decisions, key=lambda item: item.position)),
        layers=_layers(records),
        judged=sum(row.judged for row in report.rows),
        values=len(report.rows),
        eager=eager,
        consistent=consistent,
        unjudged=_unjudged(report.rows, {item.row.value for item in wrong}),
        failed=report.failed,
        graph=picture(
            report.rows, report.graphs, wrong[0].row if wrong else None, {_key(item): _errors(item) for item in records}
        ),
    )


def _records(run: Stepwise, report: Report) -> list[PositionedRow]:
    """Return where values differ, with their rows of the report, without the positions at which only rounding differs.

    See `_without_rounding`.
    """
    rows = {(row.stage, row.kind, row.value): row for row in report.rows}
    records = {key: replace(item, row=rows[key]) for key, item in run.positions.rows.items() if key in rows}
    for stage, graph in report.graphs.items():
        of_values = {row.value: row for row in report.rows if row.stage == stage and row.kind != "output"}
        wrong = _wrong_values(x for x in records.values() if x.row.stage == stage and x.row.kind != "output")
        records |= {_key(item): item for item in _without_rounding(graph, wrong, of_values)}
    return [*records.values()]


def _without_rounding(graph: Graph, items: Iterable[PositionedRow], rows: Mapping[str, Row]) -> list[PositionedRow]:
    """Return wrong values without the positions before those of the wrong values that they are computed from.

    The node of a value that is right on the reference's numbers makes nothing wrong by itself. At earlier positions,
    its numbers differ by rounding that it, or a node before it, amplifies.

    Args:
        graph: the graph.
        items: the values that are wrong at some position.
        rows: the rows of all values that were compared, by name.
    """
    wrong = {item.row.value: item for item in items}

    def start_of(name: str, inherited_start: int | None) -> int | None:
        """Return the first wrong position of a value, from that of what its node reads; None if it is right."""
        item = wrong.get(name)
        if item is None:
            is_right = name in rows and rows[name].judged and not rows[name].diverged
            return None if is_right else inherited_start
        alone = item.row.isolated
        if inherited_start is not None and alone is not None and alone.sound:
            wrong[name] = item = _from(item, inherited_start)
        return item.position or 0

    # It calls `start_of` in the order of execution, which changes `wrong`; inputs may be wrong from position 0 on.
    inherited_starts(graph.nodes, start_of, dict.fromkeys(graph.inputs, 0))
    return [*wrong.values()]


def _from(item: PositionedRow, start: int) -> PositionedRow:
    """Return a wrong value as right before a position; unchanged if all or none of its wrong ones are before it."""
    places = tuple(position for position in item.wrong if position >= start)
    if not places or len(places) == len(item.wrong):
        return item
    return replace(item, position=places[0], sequence=None, wrong=places)  # the sequence was that of an earlier one


def _wrong_values(records: Iterable[PositionedRow]) -> list[PositionedRow]:
    """Return what is wrong at some position; an output only if it is right in the run with instrumentation."""
    wrong = [item for item in records if item.position is not None and item.row.diverged]
    of_nodes = {item.row.value for item in wrong if item.row.kind != "output"}
    return [item for item in wrong if item.row.kind != "output" or item.row.value not in of_nodes]


def _positions(
    records: Sequence[PositionedRow],
    outputs: Mapping[str, PositionedRow],
    steps: Steps,
    flips: Sequence[tuple[int, float | None]],
) -> tuple[DecodePosition, ...]:
    """Return the largest differences at each position, of the outputs by their names; see `_flips` for `flips`."""
    logits = [item for name, item in outputs.items() if name == LOGITS]
    state = [item for name, item in outputs.items() if name.startswith(PRESENT)]

    def largest(items: Iterable[PositionedRow], position: int) -> float:
        return max((item.errors[position] for item in items), default=0.0)

    return tuple(
        DecodePosition(
            position,
            steps.step_of(position),
            logits=largest(logits, position),
            state=largest(state, position),
            worst=largest(records, position),
            flips=count,
            margin=margin,
        )
        for position, (count, margin) in enumerate(flips)
    )


def _layers(records: Iterable[PositionedRow]) -> tuple[LayerErrors, ...]:
    """Return the differences of the values of each module by position."""
    by_module = defaultdict[str, list[PositionedRow]](list)
    for item in records:
        if item.row.kind != "output":
            by_module[item.row.module or ""].append(item)
    return tuple(
        LayerErrors(
            module,
            tuple(map(max, zip(*(item.errors for item in items), strict=True))),
            tuple(sorted({position for item in items for position in _errors(item).wrong})),
        )
        for module, items in by_module.items()
    )


def _unjudged(rows: Iterable[Row], wrong: Collection[str]) -> dict[str, str]:
    """Return why outputs were not judged, by their names, except those that are known to be wrong."""
    unknown = (row for row in rows if row.kind == "output" and row.value not in wrong)
    return {
        row.value: row.reason or row.status if not row.judged else f"{row.status}, position unknown"
        for row in unknown
        if row.diverged or not row.judged
    }


def _in_causal_order(wrong: Sequence[PositionedRow], steps: Steps) -> list[PositionedRow]:
    """Return wrong values by step and, in each, in the order of execution, which is that of cause and effect.

    Integers and masks may be wrong without an effect, such as the start of a window that hides nothing yet: they count
    from the first position at which a number is wrong.
    """

    def counts(item: PositionedRow) -> bool:
        """Return whether a value counts from its own position on: floating-point ones, and states of the cache."""
        return (item.row.dtype or "").startswith(("float", "bfloat")) or item.row.value.startswith(PRESENT)

    def step_of(item: PositionedRow) -> int:
        return steps.step_of(item.position or 0)

    shown = min((item.position or 0 for item in wrong if counts(item)), default=0)
    items = [item if counts(item) else replace(item, position=max(item.position or 0, shown)) for item in wrong]
    return sorted(items, key=lambda item: (step_of(item), STAGES.index(item.row.stage), item.row.index))


def _key(item: PositionedRow) -> RowKey:
    """Return what identifies the row among those of a report."""
    return item.row.stage, item.row.kind, item.row.value


def _errors(item: PositionedRow) -> PositionErrors:
    """Return how far a value is off at each position; of one that is close, no position is wrong."""
    return PositionErrors(item.errors, item.wrong if item.row.diverged else ())


def _decision(item: PositionedRow) -> DecodeDecision | None:
    """Return a decision that is not the model's because rounding decides it; None if a value is none."""
    row = item.row
    flips = None if row.float64 is None or row.diverged else row.float64.flips
    if row.kind == "output" or flips is None or item.position is None:
        return None
    return DecodeDecision(item.position, item.sequence, row.node, row.op, row.value, row.module, flips)


def _before_decisions(item: PositionedRow, first_positions: Mapping[str, int]) -> PositionedRow:
    """Return a row without the differences of decisions, and of positions from which on one before changes it.

    Args:
        item: the row.
        first_positions: the first position at which each decision is not the model's, by the name of its value.
    """
    verdict = item.row.float64
    is_changed = verdict is not None and (verdict.decided or 0.0) > WRONG * verdict.rounding
    follows = verdict.follows if verdict is not None and is_changed else ()
    first = min((first_positions[name] for name in follows if name in first_positions), default=len(item.errors))
    first = 0 if item.row.decides else first  # its own differences are all of decisions
    return replace(item, errors=tuple(0.0 if index >= first else error for index, error in enumerate(item.errors)))


def _token_decision(item: PositionedRow, logits: torch.Tensor | None, expected: torch.Tensor) -> DecodeDecision | None:
    """Return the choice of the next token as a decision if it differs, although the logits are right up to rounding.

    Args:
        item: the logits.
        logits: the program's logits; None if they are not known.
        expected: the model's, of the same shape.
    """
    row, verdict = item.row, item.row.float64
    is_right = verdict is not None and not (row.diverged or row.follows)
    if not is_right or logits is None or verdict is None:
        return None
    values, chosen = expected.double(), logits.argmax(-1, keepdim=True)
    margins = (values.amax(-1, keepdim=True) - values.gather(-1, chosen))[..., 0]
    flipped = chosen[..., 0] != expected.argmax(-1)
    if not bool(flipped.any()):
        return None
    position, sequence = min((place, index) for index, place in flipped.nonzero().tolist())
    flips = Flips(int(flipped.sum()), flipped.numel(), float(margins[flipped].max()), 2 * verdict.rounding)
    return DecodeDecision(position, sequence, row.node, "next token", row.value, row.module, flips)


def _break(item: PositionedRow) -> DecodeBreak:
    """Return a wrong value as a break of the result."""
    row = item.row
    return DecodeBreak(
        stage=row.stage,
        position=item.position or 0,
        sequence=item.sequence,
        node=row.node,
        op=row.op,
        value=row.value,
        module=row.module,
        source=row.source,
        introduced=row.introduced,
        float64=row.float64,
        index=row.index,
    )


def _flips(logits: torch.Tensor | None, expected: torch.Tensor) -> list[tuple[int, float | None]]:
    """Return in how many sequences the largest logit of each position is another one, and the model's largest margin.

    The margin is the difference of its two largest logits, relative to the root mean square of all.
    """
    if logits is None:
        return [(0, None)] * expected.shape[1]
    values = expected.double()
    top = values.topk(2, -1).values
    margins = (top[..., 0] - top[..., 1]) / values.square().mean().sqrt()
    flipped = logits.argmax(-1) != expected.argmax(-1)
    counts = flipped.sum(0).tolist()
    largest = torch.where(flipped, margins, 0.0).amax(0).tolist()
    return [(count, margin if count else None) for count, margin in zip(counts, largest, strict=True)]
