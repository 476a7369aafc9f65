"""Compare the values of a completed run of a torch graph with their references."""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

import torch

from filch.export.evaluation._unpredictable import Unpredictable

from ..engine._isolated_nodes import IsolatedInputs, compare_isolated_nodes, isolated_verdicts
from ..engine._random import RandomValues
from ..engine._value_comparator import Summed, ValueComparator, in_order
from ..float64._decision_values import differ
from ..float64._noise import unit_of
from ..float64._values import Float64Values
from ..float64._verdict import RoundingVerdict
from ..judging._facts import RunFacts
from ..judging._judge import Judge
from ..judging._run import JudgedProgram, Run, TensorLookup
from ..judging._run_decisions import matches_float64
from ..metrics._limits import Limits
from ..metrics._metrics import Difference
from ..provenance._provenance import NodeProvenance
from ..references._resolver import Reference, ReferenceResolver
from ..results._rows import Row

_ALL_PREDICTABLE = Unpredictable()


def compare_values(
    run: Run,
    values: Mapping[str, torch.Tensor],
    references: Mapping[str, Reference],
    provenance: NodeProvenance | None,
    limits: Limits,
    *,
    float64: Float64Values | None = None,
    node_values: Callable[[TensorLookup], Float64Values] | None = None,
    unpredictable: Unpredictable = _ALL_PREDICTABLE,
    known: Collection[str] = (),
    drawing: Collection[str] = (),
    reasons: Mapping[str, str] = MappingProxyType({}),
    summed: Summed = lambda *_: None,
    isolate: Callable[[TensorLookup], Iterable[tuple[str, torch.Tensor]]] | None = None,
) -> tuple[list[Row], Difference | None]:
    """Return the rows of a completed run, and the difference that instrumentation makes to its outputs.

    Args:
        run: the run.
        values: the values of the instrumented run.
        references: see `ValueComparator`.
        provenance: see `ValueComparator`.
        limits: see `ValueComparator`.
        float64: the float64 values by exported name; None judges by tolerance.
        node_values: returns the float64 outputs of each node (see `RunFacts.recompute`); None does not judge decisions
            or nodes in isolation by them.
        unpredictable: the exported names of random values and uninitialized memory.
        known: the names of those random values from which the references of later values were computed.
        drawing: the names of the nodes that draw random numbers which are compared with those of the references.
        reasons: see `ValueComparator`.
        summed: see `ValueComparator`.
        isolate: runs each node on the references that a function returns (see `Isolates.isolate`), if it can be done.
    """
    program = JudgedProgram(run.graph) if provenance is None else JudgedProgram(provenance.exported, provenance.of)
    recompute = None if node_values is None else lambda known, **_: node_values(known)
    judge = None
    if float64 is not None:
        named = ((run.exported_name(name), tensor) for name, tensor in values.items())
        decisions = {name: tensor for name, tensor in named if float64.decides(name, tensor)}
        # Values are judged by the run's own decisions only if one is another than float64's or the reference's.
        others = any(
            not matches_float64(tensor, float64.get(name))
            or (name in references and differ(references[name].tensor, tensor, unit_of(tensor.dtype)))
            for name, tensor in decisions.items()
        )
        judge = Judge(RunFacts(run, program, float64, recompute=recompute, known_decisions=decisions if others else {}))
    random = RandomValues(run, unpredictable, program.computes, drawing, known)
    resolver = ReferenceResolver(references)
    comparator = ValueComparator(
        run, resolver, provenance, limits, judge=judge, random=random, reasons=reasons, summed=summed
    )
    comparator.compare((name, tensor, None) for name, tensor in in_order(run.graph, values))
    if isolate is None or judge is None or node_values is None:
        return comparator.rows(), comparator.observer_effect

    def isolate_nodes(selected: Collection[str] | None) -> dict[str, RoundingVerdict]:
        """Return the verdicts on the selected nodes, or all, in isolation, by the names of their values."""
        inputs = IsolatedInputs(run, comparator.values, resolver, selected)
        facts = RunFacts(run, program, node_values(inputs.get_exported), replaced=inputs.replaced, recompute=recompute)
        observed = ((name, tensor, None) for name, tensor in isolate(inputs.get))
        allowances, unjudged = comparator.allowances, random.unjudged
        return compare_isolated_nodes(comparator.values, observed, inputs, Judge(facts), allowances, unjudged)

    isolated = isolated_verdicts(comparator.values, run.graph, judge.facts.suspects, isolate_nodes)
    return comparator.rows(isolated), comparator.observer_effect
