"""Explain a comparison by float64 in sentences: where an error starts, and which outputs it reaches."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from filch.export import Graph
from filch.export.backends import Stage
from filch.steal.text._visible import short_line, visible

from ..common._source import short_source
from ..float64._verdict import BOTH_WRONG, RoundingVerdict, format_ratio
from ._rows import Row

_MIN_GROWTH = 10.0  # the least factor by which the error grows at a node for it to be mentioned
_MAX_NAMES = 5  # names in a list
_NOT_ALONE = "nodes were not run alone"


@dataclass(frozen=True)
class Explanation:
    """The measured facts of a comparison by float64, and their explanation as text.

    Attributes:
        starts: the first row whose own node is wrong; None if there is none.
        others: the other such rows, one for each node.
        results: the model outputs whose error exceeds rounding.
        inherits: the intermediate values whose error exceeds rounding although no node is wrong by itself, one for each
            node.
        alone: whether any node ran alone.
        first: if none did, the first value whose error exceeds rounding, without the outputs; else None.
        largest: if no node is wrong by itself, the row with the largest error of its own node among the nodes that
            compute the first value that differs; None if rounding explains all of them.
        sound: the names of the stages without an error.
        grows: the row at which the error grows most; None if it grows by less than ten times.
        growth: the factor, relative to the typical magnitude of each tensor (see `RoundingVerdict.magnitude`).
        decisions: the values with integers that differ because rounding decides them, one row for each.
        followers: the values that these decisions change, without the outputs.
        changed: the output that these decisions change most; None if they change none.
        suspicious: rows whose own node's error is slightly larger than rounding.
        unknown: the number of values that differ and were judged by the tolerance, as they have no float64 reference.
        worst: the row with the largest error as a multiple of rounding, and the verdict that has it: on the row's own
            node if all nodes ran in isolation, else on the value; None if there is no verdict.
        culprits: the transformations without which there is no error (see `blame`).
        switches: the number of transformations that could be disabled; None if `blame` tried none.
        repro: the folder of the repro; `""` if there is none.
        interface: how inputs and outputs differ from those of the model (see `Report.interface`).
        changed_weights: the weights of `starts` that are not the model's (see `Report.changed_weights`).
        coarser_dtype: the coarser dtype in which the graph computes `starts` (see `Report.coarser_dtype`).
    """

    starts: Row | None
    others: tuple[Row, ...]
    results: tuple[Row, ...]
    inherits: tuple[Row, ...]
    alone: bool
    first: Row | None
    largest: Row | None
    sound: tuple[str, ...]
    grows: Row | None
    growth: float
    decisions: tuple[Row, ...]
    followers: tuple[Row, ...]
    changed: Row | None
    suspicious: tuple[Row, ...]
    unknown: int
    worst: tuple[Row, RoundingVerdict] | None
    culprits: tuple[str, ...] = ()
    switches: int | None = None
    repro: str = ""
    interface: tuple[str, ...] = ()
    changed_weights: tuple[str, ...] = ()
    coarser_dtype: str = ""

    def __str__(self) -> str:
        if self.starts is None and not self.results:
            return visible(" ".join(filter(None, (self._text_without_divergence(), self._decisions_text()))))
        parts = [self._start_text(), self._others_text(), self._outputs_text()]
        if self.grows is not None:
            factor = format_ratio(self.growth)
            parts.append(f"The error grows most at {_node_text(self.grows)}, by a factor of {factor}.")
        parts.append(self._decisions_text())
        if self.culprits:
            parts.append(f"Disabling {_enumerated(self.culprits)} removes the error.")
        elif self.switches:
            all_switches = "the only transformation" if self.switches == 1 else f"all {self.switches} transformations"
            parts.append(f"The error persists with {all_switches} disabled.")
        if self.repro:
            parts.append(f"A standalone repro is in {self.repro}.")
        return visible(" ".join(filter(None, parts)))

    def facts(self) -> dict[str, Any]:
        """Return the explanation as JSON has it."""
        facts = {item.name: _facts(getattr(self, item.name)) for item in fields(self) if item.name not in _NO_FACTS}
        if self.grows is not None:
            facts["grows"] |= {"growth": self.growth}
        return {"text": str(self), **facts}

    def _text_without_divergence(self) -> str:
        """Return the text about a comparison in which no node and no output is wrong."""
        if self.inherits:
            first, count = self.inherits[0], len(self.inherits)
            differ = "1 value differs" if count == 1 else f"{count} values differ"
            alone = f"No node is wrong by itself, but {differ}" if self.alone else f"{differ}; {_NOT_ALONE}"
            return f"{alone}; the first is {_node_text(first)}: {_amount_text(first)}.{self._largest_text()}"
        if self.worst is None or self.worst[1].verdict == "same":
            return "No value differs from its reference."
        row, verdict = self.worst
        suspicious = f", {len(self.suspicious)} of them only barely" if self.suspicious else ""
        error = "error that a node introduces" if verdict is row.isolated else "error"
        return (
            f"Rounding explains all differences{suspicious}: the largest {error} is {format_ratio(verdict.ratio)} "
            f"times its rounding, at {_node_text(row)}.{self._unknown_text()}"
        )

    def _unknown_text(self) -> str:
        """Return how many values were judged by the tolerance, with a blank in front; `""` if none was."""
        if not self.unknown:
            return ""
        values = "1 value has" if self.unknown == 1 else f"{self.unknown} values have"
        return f" {values} no float64 reference and are judged by the tolerance."

    def _largest_text(self) -> str:
        """Return which node contributes most to the first difference, with a blank in front; `""` if not known."""
        if self.largest is None or self.largest.isolated is None:
            return ""
        amount = _error_text(self.largest.isolated, self.largest)
        node = _node_text(self.largest)
        return f" Of the nodes that compute the first difference, {node} has the largest error of its own: {amount}."

    def _start_text(self) -> str:
        """Return where the error starts, and how wrong the node is by itself."""
        sound = f"The {self.sound[0]} graph is sound. " if self.sound else ""
        if self.first is not None:
            first = f"The first value that differs is {_node_text(self.first)}: {_amount_text(self.first)}"
            return f"{sound}{first}; {_NOT_ALONE}."
        if self.starts is None:
            alone = "No node is wrong by itself" if self.alone else _NOT_ALONE.capitalize()
            return f"{sound}{alone}.{self._largest_text()}"
        row, isolated = self.starts, self.starts.isolated
        exported = "The exported graph is already wrong. " if row.stage == "exported" else ""
        reasons = "".join(f"{reason}; " for reason in reasons_of(row, self.changed_weights, self.coarser_dtype))
        what = "" if isolated is None else f"differs ({isolated.note})"
        if isolated is not None and _is_number(isolated):
            what = f"is {_error_text(isolated, row)}"
        if row.unstable and isolated is not None and isolated.spread is not None:
            what += f"; it changes from run to run, by up to {isolated.spread:.1e}"
        start = f"{sound}{exported}Divergence starts at {_node_text(row)}"
        return f"{start}: {reasons}with correct inputs, its output {what}."

    def _others_text(self) -> str:
        """Return which further nodes are wrong by themselves."""
        if not self.others:
            return ""
        count = len(self.others)
        wrong = "1 further node is wrong by itself" if count == 1 else f"{count} further nodes are wrong by themselves"
        return f"{wrong}: {_enumerated([_node_name(row) for row in self.others])}."

    def _outputs_text(self) -> str:
        """Return which model outputs differ from the reference, or that none does.

        `""` if none does because the reference has the same error: such outputs are not within rounding error.
        """
        if not self.results:
            isolated = None if self.starts is None else self.starts.isolated
            reference_is_wrong = isolated is not None and isolated.note == BOTH_WRONG
            return "" if reference_is_wrong else "All model outputs remain within rounding error."
        rows = sorted(self.results, key=lambda row: row.float64 is None)  # those judged by the tolerance last
        outputs = [f"{short_line(row.value)} ({_amount_text(row)})" for row in rows]
        return f"Model outputs that differ: {_enumerated(outputs)}."

    def _decisions_text(self) -> str:
        """Return where rounding decides otherwise than in the model, and how much that changes other values."""
        if not self.decisions:
            return ""
        flips = [row.float64.flips for row in self.decisions if row.float64]
        named = _enumerated([f"{_node_text(row)}: {item}" for row, item in zip(self.decisions, flips, strict=True)])
        is_order = all(item is not None and item.is_order for item in flips)
        text = f"{'Indices are in another order' if is_order else 'Rounding decides otherwise'} at {named}."
        if not self.followers:
            return text
        count, worst = len(self.followers), max(row.float64.ratio for row in self.followers if row.float64)
        values = "The value" if count == 1 else f"The {count} values"
        output = ""
        if self.changed is not None and self.changed.float64 is not None:
            amount = self.changed.float64.decided or 0.0
            by = f"by {amount:.1e}" if math.isfinite(amount) else "in shape"
            output = f" (output {short_line(self.changed.value)} {by})"
        return (
            f"{text} {values} that this changes{output} {'is' if count == 1 else 'are'} judged by the same decisions, "
            f"and at most {format_ratio(worst)} times rounding off."
        )


def explain(
    all_rows: Sequence[Row], wrong_nodes: Sequence[Row], graphs: Mapping[Stage, Graph], **known: Any
) -> Explanation | None:
    """Return the explanation of a comparison by float64; None if no value was judged by it.

    Args:
        all_rows: the rows of a report.
        wrong_nodes: the rows whose own node is wrong.
        graphs: the graphs that were compared, by stage.
        **known: further attributes of the explanation.
    """
    rows = [row for row in all_rows if row.kind != "output"]
    if not any(row.isolated is not None or row.float64 is not None for row in rows):
        return None
    introduced = _first_of_each_node(wrong_nodes)
    outputs = [row for row in all_rows if row.kind == "output" and row.diverged]
    results = tuple({(row.stage, row.value): row for row in reversed(outputs)}.values())[::-1]  # the first call's
    stages = list(dict.fromkeys(row.stage for row in rows))
    wrong = {row.stage for row in (*wrong_nodes, *results)}
    if stages[-1] in wrong:  # then the outputs of the stages before say nothing more
        results = tuple(row for row in results if row.stage == stages[-1])
    alone = any(row.isolated is not None for row in rows)
    grows, growth = _largest_growth(all_rows, graphs) if introduced or results else (None, 0.0)
    return Explanation(
        starts=introduced[0] if introduced else None,
        others=tuple(introduced[1:]),
        results=results,
        inherits=() if introduced or results else _first_of_each_node(row for row in rows if row.diverged),
        alone=alone,
        first=None if alone else next((row for row in rows if row.diverged), None),
        largest=None if introduced else _largest_of_first_difference(rows, graphs),
        sound=tuple(stage for stage in stages if stage not in wrong) if wrong else (),
        grows=grows,
        growth=growth,
        decisions=_first_of_each_value(row for row in rows if row.decides),
        followers=_first_of_each_value(row for row in rows if row.follows and _decided(row)),
        changed=max((row for row in all_rows if row.kind == "output" and row.follows), key=_decided, default=None),
        suspicious=_first_of_each_node(
            row for row in rows if row.isolated is not None and row.isolated.verdict == "suspicious"
        ),
        unknown=sum(bool(row.error) and row.float64 is None for row in rows),
        worst=_worst(rows),
        **known,
    )


def reasons_of(row: Row, changed_weights: Sequence[str], coarser_dtype: str) -> Iterable[str]:
    """Yield why the node where an error starts may be wrong, as far as the graph or the numbers show it.

    Args:
        row: its row.
        changed_weights: see `Report.changed_weights`.
        coarser_dtype: see `Report.coarser_dtype`.
    """
    whose = "reference" if row.evidence == "program" else "model"
    if names := [f"`{short_line(name)}`" for name in changed_weights]:
        differ = f"is not the {whose}'s weight" if len(names) == 1 else f"are not the {whose}'s weights"
        yield f"{_enumerated(names)} {differ}"
    if coarser_dtype:
        yield f"it is computed in {coarser_dtype}, unlike in the {whose}"
    elif row.exact_in:
        yield f"all its numbers are exact in {row.exact_in}, as if it were computed in {row.exact_in}"


def _first_of_each_value(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the first row of each value, of all calls and stages."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.value, row)
    return tuple(first.values())


def _decided(row: Row) -> float:
    """Return how much earlier decisions that differ change a value."""
    return 0.0 if row.float64 is None or row.float64.decided is None else row.float64.decided


def _largest_of_first_difference(rows: Sequence[Row], graphs: Mapping[Stage, Graph]) -> Row | None:
    """Return the row of `Explanation.largest`."""
    first = next((row for row in rows if row.diverged), None)
    if first is None or first.stage not in graphs:
        return None
    graph = graphs[first.stage]
    names = {node.name for node in graph.cone([first.value], graph.constant_values)}
    candidates = (row for row in rows if (row.call, row.stage) == (first.call, first.stage) and row.node in names)
    # No node is wrong by itself when this is called, so that the largest error is at most suspicious.
    return max(
        (row for row in candidates if row.isolated is not None and row.isolated.verdict == "suspicious"),
        key=lambda row: 0.0 if row.isolated is None else row.isolated.ratio,
        default=None,
    )


def _worst(rows: Sequence[Row]) -> tuple[Row, RoundingVerdict] | None:
    """Return the row with the largest error as a multiple of rounding; see `Explanation.worst`."""
    all_isolated = all(row.isolated is not None or row.float64 is None for row in rows)
    verdicts = ((row, row.isolated if all_isolated else row.float64) for row in rows)
    known = [(row, verdict) for row, verdict in verdicts if verdict is not None]
    return max(known, key=lambda item: item[1].ratio, default=None)


def _first_of_each_node(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the first row of each faulty node, without compiled nodes that compute an exported one among them."""
    first = dict[tuple[str, str], Row]()
    for row in rows:
        exported = {("exported", origin) for origin in row.origins if row.stage != "exported"}
        if not exported & first.keys():
            first.setdefault((row.stage, row.node), row)
    return tuple(first.values())


def _largest_growth(all_rows: Sequence[Row], graphs: Mapping[Stage, Graph]) -> tuple[Row | None, float]:
    """Return the row with the largest growth of the relative error by a node that is not wrong, and the factor."""
    rows = {(row.call, row.stage, row.value): row for row in all_rows if row.kind != "output"}
    best, factor = None, _MIN_GROWTH
    for row in rows.values():
        if row.introduced or row.float64 is None or row.float64.sound or row.stage not in graphs:
            continue  # it is wrong by itself, or its error is rounding
        reads = graphs[row.stage].producer[row.value].reads
        inputs = [rows.get((row.call, row.stage, name)) for name in reads]
        before = max((_relative_error(item.float64) for item in inputs if item is not None), default=0.0)
        growth = _relative_error(row.float64) / before if before else 0.0
        if _is_number(row.float64) and math.isfinite(growth) and growth > factor:
            best, factor = row, growth
    return best, factor if best is not None else 0.0


def _relative_error(verdict: RoundingVerdict | None) -> float:
    """Return the error of a value relative to its typical magnitude; 0 if not known."""
    return verdict.error / verdict.magnitude if verdict is not None and verdict.magnitude else 0.0


def _error_text(verdict: RoundingVerdict, row: Row) -> str:
    """Return how far the value of a row, or of its node alone, is from float64."""
    if not _is_number(verdict):
        return verdict.note
    if verdict.note:
        return f"off by {verdict.error:.1e} ({verdict.note})"
    distance = f"{verdict.error:.1e} (absolute) from float64, {format_ratio(verdict.ratio)} times {row.dtype} rounding"
    reference = "reference" if row.evidence == "program" else "eager"
    return f"{distance} ({reference}: {verdict.eager:.1e})"


def _amount_text(row: Row) -> str:
    """Return how far the value of a row is from float64, or else from its reference."""
    return short_line(row.reason or row.difference) if row.float64 is None else _error_text(row.float64, row)


def _is_number(verdict: RoundingVerdict) -> bool:
    """Return whether the error is a finite multiple of rounding."""
    return math.isfinite(verdict.ratio)


def _node_text(row: Row) -> str:
    """Return text like `layers.1.mlp.act (Gelu, fused from Div, Erf and 2 Mul, modeling_x.py:176)`."""
    parts = [short_line(row.op)]
    if row.kind == "fused":
        counts = Counter(row.operators).items()
        fused = [f"{count} {short_line(op)}" if count > 1 else short_line(op) for op, count in counts]
        parts.append(f"fused from {_enumerated(fused, most=8)}")
    if row.source:
        parts.append(short_line(short_source(row.source)))
    if row.unjudged:
        parts.append(f"after {_enumerated([*map(short_line, row.unjudged)])}, which could not be judged")
    return f"{_node_name(row)} ({', '.join(parts)})"


def _node_name(row: Row) -> str:
    """Return text like `layers.1.mlp.act` in `layers.1`."""
    return f"`{short_line(row.node)}` in `{short_line(row.module)}`" if row.module else f"`{short_line(row.node)}`"


def _enumerated(parts: Sequence[str], most: int = _MAX_NAMES) -> str:
    """Return parts of a sentence as `a, b and c`, the last of which counts those that are too many."""
    shown = [*parts[:most], f"{len(parts) - most} more"] if len(parts) > most else [*parts]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


_ROW_FIELDS = ("call", "stage", "node", "op", "value", "module", "source", "origins", "operators")  # of rows, in JSON
_NO_FACTS = ("growth", "interface", "worst")  # attributes that JSON does not have by themselves


def _facts(value: Any) -> Any:
    """Return an attribute of an explanation as JSON has it; a text that is not known is None."""
    if isinstance(value, Row):
        return _row_facts(value)
    if isinstance(value, tuple):
        return [*map(_facts, value)]
    return None if value == "" else value


def _row_facts(row: Row) -> dict[str, Any]:
    judged = {"float64": row.float64, "isolated": row.isolated}
    verdicts = {name: None if item is None else asdict(item) for name, item in judged.items()}
    return {name: getattr(row, name) for name in _ROW_FIELDS} | verdicts
