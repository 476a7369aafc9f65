"""Holds the values of a graph against their references, a row each."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from filch.export import Graph, Node
from filch.export.backends import Stage

from ._metrics import Difference, compare_tensors, typical_magnitude
from ._origins import Origins
from ._references import Reference
from ._report import Row, Status
from ._tolerance import Limits, Tolerance, default_tolerance, quantized_tolerance


@dataclass(frozen=True)
class Ran:
    """One run of a graph.

    Attributes:
        call: which call of the model.
        stage: which of its graphs.
        graph: the graph.
        values: what its nodes made, by name; its inputs too.
        outputs: the outputs of the undisturbed run, by name.
        same: the exported graph's names of the values that have others here.
        lower_precision: see `compare`.
    """

    call: int
    stage: Stage
    graph: Graph
    values: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    same: Mapping[str, str] = field(default_factory=dict)
    lower_precision: bool = False

    @property
    def effect(self) -> Difference | None:
        """How far the observed run's outputs are from the undisturbed one's; None if they are equal bit for bit."""
        return worst_effect(
            compare_tensors(output, self.values.get(name))
            for name, output in self.outputs.items()
            if not _identical(output, self.values.get(name))
        )


def worst_effect(effects: Iterable[Difference | None]) -> Difference | None:
    """The largest of some differences; one that can't be measured is larger than all."""
    found = [effect for effect in effects if effect is not None]
    return max(found, key=lambda effect: (bool(effect.problem), effect.error_max), default=None)


def _identical(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


_OF_SEQUENCES = frozenset(
    {"SplitToSequence", "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceMap"}
)


# What they make are integers of a scale of their own.
_QUANTIZES = re.compile(r"(.*::)?(QuantizeLinear|DynamicQuantizeLinear|QLinear\w+|QGemm|\w+Integer)$")


def judge(ran: Ran, references: Mapping[str, Reference], origins: Origins | None, limits: Limits) -> Iterator[Row]:
    """A row for each value that a node made, in order, then one for each output of the undisturbed run.

    Args:
        ran: what ran.
        references: what the values should be, by the exported graph's names.
        origins: for a compiled graph, which exported nodes its nodes compute.
        limits: the tolerance of each value (see `limits_of`).
    """
    judged = {*ran.graph.inputs, *ran.graph.constants}
    for index, node in enumerate(ran.graph.nodes):
        for name in node.outputs:
            if name:
                known = ran.same.get(name, name)
                reference, limit = references.get(known), limits.get(name, limits.get(known))
                row = _row(ran, index, node, name, reference=reference, origins=origins, tolerance=limit)
                if row.judged:
                    judged.add(name)
                yield _with_unjudged(row, ran.graph, node, judged) if row.diverged and origins is None else row
    for name in ran.graph.outputs:
        producer = ran.graph.producer.get(name)
        node = producer or Node(name, "", (), (name,))
        row = Row(
            call=ran.call,
            stage=ran.stage,
            index=len(ran.graph.nodes),
            kind="output",
            node=node.name,
            op=node.op,
            value=name,
            module=node.module,
            source=node.source,
        )
        known, magnitude = ran.same.get(name, name), partial(_magnitude, ran, node)
        limit = limits.get(name, limits.get(known))
        measure = partial(compare_tensors, tolerance=limit, lower_precision=ran.lower_precision)
        yield _judged(row, references.get(known), ran.outputs.get(name), measure=measure, magnitude=magnitude)


def limits_of(
    graph: Graph,
    values: Mapping[str, torch.Tensor],
    tolerance: float | Tolerance | None,
    *,
    lower_precision: bool = False,
) -> Limits:
    """The tolerance of each value: what the user says, else that of the coarsest floating-point type on the way to it.

    A float32 that was computed from float16 is no better than float16 is, on either side.

    Args:
        graph: the exported graph.
        values: its values, by name: those that ran, else their references.
        tolerance: see `compare`.
        lower_precision: let numbers that were integers on the way be as far off as these are coarse.
    """
    if tolerance is not None:
        return dict.fromkeys(graph.known, tolerance)
    found: dict[str, Tolerance] = {}
    for node in graph.nodes:
        before = [found[name] for name in node.reads if name in found]
        if lower_precision and (coarse := quantized_tolerance(node, graph)) is not None:
            found |= dict.fromkeys(node.outputs, coarse)
            continue
        for name in node.outputs:
            tensor = values.get(name)
            if tensor is not None and tensor.is_floating_point():
                own = default_tolerance(tensor.dtype)
                found[name] = max([own, *before], key=lambda limit: limit.harmonic)
    return dict(found)


def _with_unjudged(row: Row, graph: Graph, node: Node, judged: set[str]) -> Row:
    """A row that diverged, with the nodes before it that could not be judged: the fault may be any of theirs."""
    if all(name in judged for name in node.reads):
        return row
    nodes = graph.cone([row.value], frozenset(judged - {row.value}))
    return replace(row, origins=tuple(item.name for item in nodes), operators=tuple(item.op for item in nodes))


def _row(
    ran: Ran,
    index: int,
    node: Node,
    name: str,
    *,
    reference: Reference | None,
    origins: Origins | None,
    tolerance: float | Tolerance | None,
) -> Row:
    computes = origins.of(node) if origins else ()
    named = next((item for item in reversed(computes) if item.module is not None), node)
    row = Row(
        call=ran.call,
        stage=ran.stage,
        index=index,
        kind="constant" if name in ran.graph.fixed else "fused" if len(computes) > 1 else "node",
        node=node.name,
        op=node.op,
        value=name,
        module=node.module if node.module is not None else named.module,
        source=node.source or named.source,
        origins=tuple(item.name for item in computes),
        operators=tuple(item.op for item in computes),
    )
    inside = origins.inside(name) if origins and reference is None else ""
    magnitude = partial(_magnitude, ran, node)
    measure = partial(compare_tensors, tolerance=tolerance, lower_precision=ran.lower_precision)
    return _judged(row, reference, ran.values.get(name), measure=measure, magnitude=magnitude, inside=inside)


def _magnitude(ran: Ran, node: Node, expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The magnitude of what a node computes its wrong elements with, weights aside.

    Only where expected and actual differ, as far as an input's elements can be told to go there: a mask of -3.4e38 is
    the same in both, and would explain any difference beside it.
    """
    differs = expected != actual
    found = 0.0
    for name in node.reads:
        tensor = ran.values.get(name)
        if tensor is not None and tensor.is_floating_point():
            goes_there = _broadcasts(tensor.shape, expected.shape)
            found = max(found, typical_magnitude(tensor.expand(expected.shape)[differs] if goes_there else tensor))
    return found


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


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
    if actual is not None and _QUANTIZES.match(row.op) and reference is None:
        return replace(row, status="no value", reason="integers: they are judged where they are numbers again")
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
