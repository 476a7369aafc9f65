"""What a program with a cache computes step by step, and the position and the node where it goes wrong."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from filch.export import Graph
from filch.steal.text._visible import short_line

from ..common._source import short_source
from ..float64._verdict import Flips, RoundingVerdict
from ..rendering._json import NOT_IN_JSON
from ..rendering._outcome import Gap, Proof
from ..rendering._result import Result
from ..rendering._table import Block, Column, Columns, attributes, fit_paths, folded, section, table_of


@dataclass(frozen=True)
class DecodeBreak:
    """A value that is wrong from a position on.

    Attributes:
        stage: `exported` or `compiled`; see `Row`.
        position: the first position at which it is wrong, from 0.
        sequence: the first sequence that is wrong there; None if the value is the same for all, or if it is not known.
        node: the node that computes it.
        op: its operator.
        value: its name.
        module: the path of its module; None if not known.
        source: the line of model code, `file:line`; None if not known.
        introduced: whether its node is wrong by itself, on correct inputs.
        float64: how far it is from float64; None if it was judged by tolerance.
        index: the node's index in the graph.
    """

    stage: str
    position: int
    sequence: int | None
    node: str
    op: str
    value: str
    module: str | None
    source: str | None
    introduced: bool
    float64: RoundingVerdict | None
    index: int

    def __str__(self) -> str:
        at = f"position {self.position}" + ("" if self.sequence is None else f" of sequence {self.sequence}")
        line = f" ({short_source(self.source)})" if self.source else ""
        note = f", {self.float64.note}" if self.float64 is not None and self.float64.note else ""
        return short_line(f"{at}: {self.node} ({self.op}) in {self.module or 'the model'}{line}{note}")


@dataclass(frozen=True)
class DecodeDecision:
    """A decision that is not the model's because rounding decides it, such as that of a router or the next token.

    Attributes:
        position: the first position at which it differs.
        sequence: the first sequence in which it differs there; None if it is the same for all.
        node: the node that computes it; of the next token, the node that computes the logits.
        op: its operator; `next token` for that.
        value: its name.
        module: the path of its module; None if not known.
        flips: how many differ at all positions, and how near the compared numbers are to each other.
    """

    position: int
    sequence: int | None
    node: str
    op: str
    value: str
    module: str | None
    flips: Flips


@dataclass(frozen=True)
class DecodePosition:
    """One position, in all sequences.

    Attributes:
        position: the position, from 0.
        step: the index of the step that computes it.
        logits: the largest difference of a logit from the model's, relative to the root mean square of all.
        state: likewise of the keys and values in the cache.
        worst: likewise of all values. What follows from another decision than the model's is not in these differences.
        flips: in how many sequences the most likely next token is another one.
        margin: the difference of the model's two largest logits where it flips, the largest one, relative as `logits`;
            None if it does not.
    """

    position: int
    step: int
    logits: float
    state: float
    worst: float
    flips: int = 0
    margin: float | None = None


@dataclass(frozen=True)
class LayerErrors:
    """A module's largest difference at each position.

    Attributes:
        module: its path.
        errors: for each position, the largest difference of a value in it, relative to the root mean square of the
            value.
        wrong: the positions at which a value in it is wrong, in order.
    """

    module: str
    errors: tuple[float, ...]
    wrong: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
class Decoding(Result):
    """A program that was run step by step, compared with the model.

    Attributes:
        model: the name of the model.
        backend: the backend that ran the program.
        cache: `dynamic`, `static`, `window` or `static-window`.
        to: the precision that the program was lowered to; `""` for the model's.
        sequences: the number of sequences.
        prefill: the number of tokens of the first step; the others have one each, the last one two if it can.
        positions: one row for each position.
        breaks: the values that are wrong, by step and in the order of execution; the first one is the cause.
        decisions: those that are not the model's because rounding decides them, by position.
        layers: the differences in each module by position.
        judged: how many values were judged.
        values: how many values the program computes from the tokens.
        eager: the largest difference of the model's own logits, decoded step by step in eager PyTorch, from those of
            one call, relative to the root mean square.
        consistent: whether these are the same up to rounding: by the tolerance of their dtype; beyond it, in float64.
        unjudged: why outputs of the program were not judged, by their names.
        failed: why parts of the comparison are missing.
        notes: what was not tried, and why.
        graph: the program's graph with the findings that views draw; see `Report.graph`.
    """

    model: str
    backend: str
    cache: str
    to: str
    sequences: int
    prefill: int
    positions: tuple[DecodePosition, ...]
    breaks: tuple[DecodeBreak, ...]
    decisions: tuple[DecodeDecision, ...]
    layers: tuple[LayerErrors, ...]
    judged: int
    values: int
    eager: float
    consistent: bool
    unjudged: Mapping[str, str] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    graph: Graph = field(default_factory=lambda: Graph("", (), (), (), (), {}), metadata=NOT_IN_JSON)
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_decoding": 2}

    @property
    def proof(self) -> Proof:
        """What was judged at all positions: a value may be wrong, the logits or a part of the cache not judged.

        It is also wrong if the model itself decodes something else than it computes in one call.
        """
        gaps = [Gap(name, reason) for name, reason in self.unjudged.items()]
        gaps += [Gap("", reason) for reason in self.failed]
        return Proof(self.judged, bool(self.breaks) or not self.consistent, tuple(gaps))

    @property
    def first_break(self) -> DecodeBreak | None:
        """The first value that is wrong at the first wrong position; None if all are right."""
        return self.breaks[0] if self.breaks else None

    @property
    def first_difference(self) -> str:
        """The first break, or else where the model itself goes wrong."""
        return str(self.first_break or ("" if self.consistent else self.headline))

    @property
    def headline(self) -> str:
        """Where it goes wrong, in one line."""
        name = f"{self.model} on {self.backend}" + (f" in {self.to}" if self.to else "")
        if not self.consistent:  # `filch invariance` examines that
            return f"{self.model} itself decodes other logits than in one call (by {self.eager:.1e}): filch invariance"
        if self.first_break is not None:
            return f"{name} goes wrong at {self.first_break}"
        if self.unjudged:
            return short_line(f"{name}: not judged: {', '.join(self.unjudged)}")
        if self.failed:
            return short_line(f"{name}: {self.failed[0]}")
        return f"{name} decodes {len(self.positions)} tokens as the model does"

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:
        """Return the verdict, the first wrong values and a row for each position."""
        yield from self.heading()
        yield from self._remarks()
        most = None if all_rows else _SHOWN
        title = "Wrong values, by step and in the order of execution:"
        yield from section(title, _BREAKS, self.breaks, most=most, skip_empty=not wide)
        yield from self._grid(most)
        wrong = {item.position for item in self.breaks}
        yield ""
        yield table_of(_POSITIONS, self.positions, marked=lambda row: row.position in wrong, skip_empty=not wide)

    def _remarks(self) -> Iterable[str]:
        """Yield sentences about the run, the decisions, and what was not judged."""
        last = sum(item.step == self.positions[-1].step for item in self.positions)
        at_the_end = f" and at the end {last}" if last > 1 else ""
        yield (
            f"{self.sequences} sequences of {len(self.positions)} tokens, in a call of {self.prefill}, then one by one"
            f"{at_the_end}, with a {self.cache} cache; {self.judged} of {self.values} values judged"
        )
        if flips := sum(item.flips for item in self.positions):
            places = len(self.positions) * self.sequences
            yield f"the most likely next token is another one at {flips} of {places} places"
        for item in self.decisions:
            place = f"`{item.node}` ({item.op}, {item.module or 'the model'})"
            what = "indices are in another order" if item.flips.is_order else "rounding decides otherwise"
            yield f"{what} at {place} from position {item.position} on: {item.flips}"
        for name, reason in self.unjudged.items():
            yield f"output {name} was not judged: {reason}"
        yield from self.failed
        yield from self.notes

    def _grid(self, most: int | None) -> Iterable[Block]:
        """Yield a table of the modules with wrong values: a sign for each position, or for several of many."""
        per_sign = -(-len(self.positions) // _SIGNS) or 1
        groups = [range(start, start + per_sign) for start in range(0, len(self.positions), per_sign)]
        columns: Columns[LayerErrors] = {
            Column("module", fit_paths, least=12, preferred=24): lambda item: item.module or "(the model)",
            Column(_ruler(groups)): lambda item: "".join("·x"[not {*item.wrong}.isdisjoint(group)] for group in groups),
        }
        each = "position" if per_sign == 1 else f"{per_sign} positions"
        title = f"Where modules have wrong values (x), a sign for each {each}:"
        yield from section(title, columns, [item for item in self.layers if item.wrong], most=most)

    def drawn(self) -> Graph:
        """Return `graph` with remarks; its page has the positions of each layer, too."""
        remarks = (self.headline, *self._remarks())
        return replace(self.graph, name=f"{self.model} on {self.backend}", remarks=remarks, close=self.close)


_SHOWN = 8  # rows of each table but that of the positions
_SIGNS = 40  # for positions in a line of a terminal


def _ruler(groups: Sequence[range]) -> str:
    """Return the heading of signs for groups of positions: the first position of every tenth."""
    text = ""
    for index, group in enumerate(groups):
        if index % 10 == 0:
            text = text.ljust(index) + str(group.start)
    return text.ljust(len(groups))


_BREAKS: Columns[DecodeBreak] = {
    "position": lambda item: item.position,
    Column("sequence", optional=2): lambda item: item.sequence,
    Column("node", folded, least=12, preferred=20): lambda item: item.node,
    "operator": lambda item: item.op,
    Column("module", fit_paths, least=12, preferred=24): lambda item: item.module or "(the model)",
    Column("line", fit_paths, least=10, preferred=16, optional=1): lambda item: (
        item.source and short_source(item.source)
    ),
    "verdict": lambda item: None if item.float64 is None else item.float64.verdict,
    "by itself": lambda item: "wrong" if item.introduced else None,
}
_POSITIONS: Columns[DecodePosition] = {
    **attributes("position", "step", "logits"),
    "cache": lambda item: item.state,
    "all values": lambda item: item.worst,
    "flips": lambda item: item.flips or None,
    "margin": lambda item: item.margin,
}
