"""Holds the values of a graph against their references, a row each, as they come."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch

from filch.export import Graph, Node

from ..common._complex import complex_as_real
from ..common._value_cache import ValueCache
from ..float64._ties import with_ties
from ..metrics._limits import Limits
from ..metrics._metrics import Difference, bytes_of, compare_tensors
from ..metrics._spread import spread_of
from ..metrics._tolerance import ANY_ERROR, Tolerance
from ..provenance._provenance import NodeProvenance
from ..references._references import Reference, StaticReferences
from ..results._rows import Row, Status
from ._allowances import Allowances
from ._float64_checker import Float64Checker, with_verdict
from ._random import Draws, judged
from ._run import ObservedValue, Run


class Listener(Protocol):
    """Whoever wants to see each value on its way."""

    def __call__(self, name: str, tensor: torch.Tensor, reference: Reference | None, row: Row) -> None:
        """Take note of a value of the graph, by its name in the exported one, and of what came of it."""


class ReferenceProvider(Protocol):
    """Whoever knows what values should be."""

    def get(self, name: str) -> Reference | None:
        """What the value of this name should be; None if nothing says it."""

    def release(self, name: str) -> None:
        """Take note that this value will not be asked for again."""


class ValueComparator:
    """Holds the values of one run against their references, one after the other, and keeps rows alone.

    Args:
        run: what runs.
        sources: what the values should be.
        origins: for a compiled graph, which exported nodes its nodes compute.
        limits: the tolerance of each value.
        listen: is told of each value.
        rounding: what knows whether a value is off by more than rounding: it says which are wrong, not the limits.
        allowances: what rounding explains by the tolerance; None is what is known without the numbers of constants.
        draws: what knows which values are random, or memory that nothing has written to.
    """

    def __init__(  # noqa: PLR0917  made in two places
        self,
        run: Run,
        sources: ReferenceProvider,
        origins: NodeProvenance | None,
        limits: Limits,
        listen: Listener | None = None,
        rounding: Float64Checker | None = None,
        allowances: Allowances | None = None,
        draws: Draws | None = None,
    ) -> None:
        self._run = run
        self._sources = sources
        self._origins = origins
        self._limits = limits
        self._listen = listen
        self._rounding = rounding
        self._allowances = allowances_of(run, origins) if allowances is None else allowances
        self._draws = draws
        graph = run.graph
        self._places = {name: (index, node) for index, node in enumerate(graph.nodes) for name in node.outputs if name}
        # Outputs are judged once more in the end, and what they are made of has to be there then.
        ends = [name for name in graph.outputs if name in self._places]
        uses = Counter(read for name in [*self._places, *ends] for read in set(self._places[name][1].reads))
        self._live = ValueCache[torch.Tensor](uses)
        for name, tensor in run.inputs.items():
            self._live.put(name, tensor)
        self._asked = Counter(map(run.exported_name, [*self._places, *graph.outputs]))
        self._judged = {*graph.inputs, *graph.constants}
        self._effects: dict[str, Difference | None] = {}
        self._rows: dict[str, Row] = {}

    @property
    def observer_effect(self) -> Difference | None:
        """How far the observed run's outputs are from the undisturbed one's; None if they are equal bit for bit."""
        return largest_effect(
            self._effects[name] if name in self._effects else compare_tensors(output, None)
            for name, output in self._run.outputs.items()
            if name in self._places and not self._varies(name)
        )

    def _varies(self, name: str) -> bool:
        """Whether the undisturbed run need not have the value that the observed run has."""
        return self._draws is not None and self._draws.varies(name)

    def rows(self, observed: Iterable[ObservedValue]) -> list[Row]:
        """A row for each value that a node made, in order, then one for each output of the undisturbed run.

        Args:
            observed: the values of the observed run, each after those that it was made of.
        """
        for name, tensor, spread in observed:
            if name in self._places:
                self._take(name, complex_as_real(tensor), spread)
        self._rows |= {name: self._judge(name, None) for name in self._places if name not in self._rows}
        rows = [self._of_parts(name) for name in self._places]
        return rows + [self._output(name) for name in self._run.graph.outputs]

    def _of_parts(self, name: str) -> Row:
        """The row of a value; a sequence is what it should be if all is that is taken out of it."""
        row, users = self._rows[name], self._run.graph.consumers.get(name, ())
        if row.judged or row.op not in _OF_SEQUENCES or not users or any(user.op != "SequenceAt" for user in users):
            return row
        parts = [self._rows[part] for user in users for part in user.outputs]
        if any(part.status != "same" for part in parts):
            return row
        worst = max(parts, key=lambda part: part.error or 0.0)
        return replace(row, status="same", reason=_TAKEN, difference=worst.difference, evidence=worst.evidence)

    def _take(self, name: str, tensor: torch.Tensor, spread: torch.Tensor | None) -> None:
        if name in self._run.outputs:
            self._effects[name] = _effect(self._run.outputs[name], tensor)
        if self._live.needs(name):
            self._live.put(name, tensor)
        self._rows[name] = self._judge(name, tensor, spread)
        self._live.consume(set(self._places[name][1].reads))

    def _judge(self, name: str, tensor: torch.Tensor | None, spread: torch.Tensor | None = None) -> Row:
        known, (_, node) = self._run.exported_name(name), self._places[name]
        held = self._sources.get(known)
        reference = self._fitted(name, held, tensor)
        if self._rounding is not None and tensor is not None:
            self._rounding.record_output_dtype(node, name, tensor.dtype)
        row = self._with_numbers(self._row(name), reference, tensor, node, spread)
        if row.judged:
            self._judged.add(name)
        if row.diverged:
            row = _with_unjudged(row, self._run.graph, node, self._judged)
        if self._listen is not None and tensor is not None and reference is held:
            self._listen(known, tensor, reference, row)
        self._asked[known] -= 1
        if not self._asked[known]:
            self._sources.release(known)
            if self._rounding is not None:
                self._rounding.release(known)
        return row

    def _fitted(self, name: str, held: Reference | None, tensor: torch.Tensor | None) -> Reference | None:
        lowered = self._run.lowered
        return held if lowered is None else lowered.reference(name, held, tensor)

    def _with_numbers(
        self,
        row: Row,
        reference: Reference | None,
        tensor: torch.Tensor | None,
        node: Node,
        spread: torch.Tensor | None = None,
    ) -> Row:
        kind = "" if self._draws is None else self._draws.kind(row.value, node)
        if kind and self._draws is not None:
            row = judged(row, kind, None if reference is None else reference.tensor, tensor)
            if row.random and row.status == "shape or dtype differs":
                self._draws.lost(row.value)
            return row
        lowered = self._run.lowered
        inside = lowered.unjudged(node, tensor) if lowered is not None else ""
        if not inside and reference is None and self._origins is not None and row.kind != "output":
            inside = self._origins.unmapped_reason(row.value)
        limit = self._limit(row.value, tensor)
        measure = partial(compare_tensors, tolerance=limit, lower_precision=lowered is not None)
        magnitude = partial(self._allowances.magnitude, row.value, node, self._live.values)
        row = _judged(row, reference, tensor, measure=measure, magnitude=magnitude, inside=inside)
        row = row if lowered is None else lowered.with_clipped(row, node, self._live.values, reference)
        if reference is None or tensor is None:
            return row
        if self._rounding is not None and not _is_quantized(limit):
            known = self._run.exported_name(row.value)
            judgement = self._rounding.judged(row.value, known, node, reference.tensor, tensor, spread)
            numbers = self._live.values.get(node.inputs[0]) if node.inputs else None
            row = with_verdict(row, with_ties(judgement, node, numbers, tensor, reference.tensor))
        return replace(row, spread=spread_of(reference.tensor, tensor)) if self._run.statistics else row

    def _limit(self, name: str, tensor: torch.Tensor | None) -> float | Tolerance | None:
        """The tolerance of a value; a stand-in has its own, if it is in the exported graph."""
        dtype = None if tensor is None else tensor.dtype
        own = self._limits.of(self._run.made.value_aliases.get(name, name), dtype)
        return self._limits.of(self._run.exported_name(name), dtype) if own is None else own

    def _row(self, name: str) -> Row:
        index, node = self._places[name]
        computes = self._origins.of(node) if self._origins else ()
        named = self._origins.node_with_module(node) if self._origins else node
        return Row(
            call=self._run.call,
            stage=self._run.stage,
            index=index,
            kind=self._kind(node, name),
            node=node.name,
            op=node.op,
            value=name,
            module=node.module if node.module is not None else named.module,
            source=node.source or named.source,
            origins=tuple(item.name for item in computes),
            operators=tuple(item.op for item in computes),
            code=node.code,
            seconds=self._run.seconds.get(node.name),
        )

    def _kind(self, node: Node, name: str) -> str:
        origins = self._origins
        if name in self._run.graph.constant_values:
            return "constant"
        if origins is None:
            return "node"
        return "inserted" if origins.is_inserted(node) else "fused" if len(origins.of(node)) > 1 else "node"

    def _output(self, name: str) -> Row:
        graph = self._run.graph
        node = graph.producer.get(name) or Node(name, "", (), (name,))
        if name in self._rows and self._varies(name):  # the undisturbed run has drawn other numbers
            return replace(self._rows[name], index=len(graph.nodes), kind="output", origins=(), operators=(), behind=())
        row = Row(
            call=self._run.call,
            stage=self._run.stage,
            index=len(graph.nodes),
            kind="output",
            node=node.name,
            op=node.op,
            value=name,
            module=node.module,
            source=node.source,
        )
        tensor = self._run.outputs.get(name)
        reference = self._fitted(name, self._sources.get(self._run.exported_name(name)), tensor)
        return self._with_numbers(row, reference, tensor, node)


def allowances_of(
    run: Run, origins: NodeProvenance | None, constant: Callable[[str], torch.Tensor | None] = lambda _: None
) -> Allowances:
    """What rounding explains in a run, by the tolerance; `constant` gives the numbers of the program's constants."""
    nodes_of = (lambda node: (node,)) if origins is None else origins.rounding_nodes
    return Allowances(nodes_of, run.exported_name, constant)


def judge(
    run: Run,
    values: Mapping[str, torch.Tensor],
    references: Mapping[str, Reference],
    origins: NodeProvenance | None,
    limits: Limits,
) -> tuple[list[Row], Difference | None]:
    """The rows of a run whose values are all there already, and how far its outputs are from the undisturbed ones."""
    one = ValueComparator(run, StaticReferences(references), origins, limits)
    return one.rows((name, tensor, None) for name, tensor in in_order(run.graph, values)), one.observer_effect


def with_covered(rows: Sequence[Row], graph: Graph, origins: NodeProvenance) -> list[Row]:
    """The rows of a compiled graph; where an error begins, with the exported nodes that were removed or folded, too."""
    wrong = {row.value for row in rows if row.diverged and row.kind != "output"}

    def told(row: Row) -> Row:
        node = graph.producer.get(row.value)
        begins = row.introduced or (row.diverged and node is not None and wrong.isdisjoint(node.reads))
        if node is None or not begins or row.kind == "output":
            return row
        covered = origins.covers(node, row.value)
        operators = tuple(item.op for item in covered if item.op != "Constant")  # a number is no computation
        return replace(row, origins=tuple(item.name for item in covered), operators=operators)

    return [told(row) for row in rows]


def in_order(graph: Graph, values: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The values that the nodes of a graph made, each after those that it was made of."""
    names = (name for node in graph.nodes for name in node.outputs)
    return ((name, values[name]) for name in names if name in values)


def largest_effect(effects: Iterable[Difference | None]) -> Difference | None:
    """The largest of some differences; one that can't be measured is larger than all."""
    found = [effect for effect in effects if effect is not None]
    return max(found, key=lambda effect: (bool(effect.problem), effect.error_max), default=None)


def _effect(undisturbed: torch.Tensor, observed: torch.Tensor) -> Difference | None:
    same = (undisturbed.shape, undisturbed.dtype) == (observed.shape, observed.dtype)
    if same and torch.equal(bytes_of(undisturbed).to(observed.device), bytes_of(observed)):
        return None
    return compare_tensors(undisturbed, observed)


_TAKEN = "a sequence of tensors: judged where they are taken out"
_OF_SEQUENCES = frozenset(
    {"SplitToSequence", "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceMap"}
)


def _with_unjudged(row: Row, graph: Graph, node: Node, judged: set[str]) -> Row:
    """A row that diverged, with the nodes before it that could not be judged: the fault may be any of theirs."""
    if all(name in judged for name in node.reads):
        return row
    nodes = graph.cone([row.value], judged)
    if row.stage == "compiled":
        behind = (
            item.name for item in nodes if item is not node and not graph.constant_values.issuperset(item.outputs)
        )
        return replace(row, behind=tuple(behind))
    return replace(row, origins=tuple(item.name for item in nodes), operators=tuple(item.op for item in nodes))


def _is_quantized(limit: float | Tolerance | None) -> bool:
    """Whether a value is as coarse as the integers that it was: float64 says nothing of that."""
    return isinstance(limit, Tolerance) and limit.harmonic == ANY_ERROR


def _judged(
    row: Row,
    reference: Reference | None,
    actual: torch.Tensor | None,
    *,
    measure: Callable[..., Difference],
    magnitude: Callable[[torch.Tensor, torch.Tensor], float],
    inside: str = "",
) -> Row:
    if actual is not None:
        row = replace(row, dtype=str(actual.dtype).removeprefix("torch."), shape=tuple(actual.shape))
    if actual is None and row.op in _OF_SEQUENCES:
        return replace(row, status="no value", reason="a sequence of tensors: they are judged where they are taken out")
    if reference is None:
        if inside:
            return replace(row, status="no value", reason=inside)
        return replace(row, status="not mapped", reason="nothing says what it should be")
    if actual is None:
        return replace(row, status="no value", reason="the backend does not give it", evidence=reference.evidence)
    difference = measure(reference.tensor, actual)
    if not difference.close and not difference.problem:  # unless rounding of what went into it explains the difference
        difference = measure(reference.tensor, actual, magnitude=magnitude(reference.tensor, actual))
    return replace(
        row,
        status=_status(difference),
        reason=difference.problem or "",
        evidence=reference.evidence,
        difference=difference,
    )


def _status(difference: Difference) -> Status:
    if difference.problem:
        return "shape or dtype differs"
    return "same" if difference.close else "different"
