"""Compare the values of a graph with their references."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from filch.export import Graph, Node, Unpredictable
from filch.export.operators import operator_of

from ..common._complex import complex_as_real
from ..common._value_cache import ValueCache
from ..float64 import Float64Values, differ, unit_of
from ..metrics._limits import Limits
from ..metrics._metrics import Difference, bytes_of, compare_tensors
from ..metrics._spread import spread_of
from ..metrics._tolerance import Tolerance, default_tolerance, is_quantized
from ..provenance._provenance import NodeProvenance
from ..references._resolver import Reference, ReferenceResolver
from ..results._rows import Row, Status
from ._allowances import Allowances
from ._coarser_dtypes import exact_dtype
from ._compared_numbers import TensorLookup
from ._float64_checker import Float64Checker, with_verdict
from ._other_decisions import matches_float64
from ._random import RandomValues, random_row
from ._run import ObservedValue, Run

# Receives a value by its name in the exported graph, its reference and its row.
OnValue = Callable[[str, torch.Tensor, Reference | None, Row], None]


class ValueComparator:
    """Compare each value of one run with its reference and return one row per value.

    Args:
        run: the run.
        references: the references of its values.
        provenance: for a compiled graph, the exported nodes that its nodes compute.
        limits: the tolerance of each value.
        on_value: called with each value and its row.
        checker: judges by float64; its verdict takes precedence over the tolerance.
        allowances: the magnitudes that rounding is relative to; by default computed without the values of constants.
        random: identifies random values and uninitialized memory; by default there are none.
    """

    def __init__(  # noqa: PLR0917  called in two places
        self,
        run: Run,
        references: ReferenceResolver,
        provenance: NodeProvenance | None,
        limits: Limits,
        on_value: OnValue | None = None,
        checker: Float64Checker | None = None,
        allowances: Allowances | None = None,
        random: RandomValues | None = None,
    ) -> None:
        self._run = run
        self._references = references
        self._provenance = provenance
        self._limits = limits
        self._on_value = on_value
        self._checker = checker
        self._allowances = allowances_of(run, provenance) if allowances is None else allowances
        self._random = random or RandomValues(run, Unpredictable(), lambda node: (node,))
        self._graph = graph = run.graph
        self._nodes = graph.producer
        # By value, not by node: nodes of a foreign file may share a name.
        self._indices = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs}
        # Outputs are judged a second time at the end, which needs the inputs of their nodes.
        outputs = [name for name in graph.outputs if name in self._nodes]
        uses = Counter(read for name in [*self._nodes, *outputs] for read in set(self._nodes[name].reads))
        self._node_inputs = ValueCache[torch.Tensor](uses)
        for name, tensor in run.inputs.items():
            self._node_inputs.put(name, tensor)
        self._uses_left = Counter(map(run.exported_name, [*self._nodes, *graph.outputs]))
        self._judged = {*graph.inputs, *graph.constants}
        self._effects: dict[str, Difference | None] = {}
        self._rows: dict[str, Row] = {}

    @property
    def observer_effect(self) -> Difference | None:
        """The largest difference between outputs with and without instrumentation; None if they are bitwise equal."""
        return largest_effect(
            self._effects[name] if name in self._effects else compare_tensors(None, output)
            for name, output in self._run.outputs.items()
            if name in self._nodes and not self._random.varies(name)
        )

    def rows(self, observed: Iterable[ObservedValue]) -> list[Row]:
        """Return a row for each value that a node computes, in order, then one for each output of the plain run.

        Args:
            observed: the values of the instrumented run, in the order of execution.
        """
        for name, tensor, spread in observed:
            if name in self._nodes:
                self._add(name, complex_as_real(tensor), spread)
        self._rows |= {name: self._judge(name, None) for name in self._nodes if name not in self._rows}
        rows = [self._sequence_row(name) for name in self._nodes]
        return rows + [self._output_row(name) for name in self._graph.outputs]

    def _sequence_row(self, name: str) -> Row:
        """Return the row of a value; a sequence is the same as its reference if all its elements are."""
        row, users = self._rows[name], self._graph.consumers.get(name, ())
        if (
            row.judged
            or not operator_of(row.op).returns_sequence
            or not users
            or any(user.op != "SequenceAt" for user in users)
        ):
            return row
        elements = [self._rows[output] for user in users for output in user.outputs]
        if any(element.status != "same" for element in elements):
            return row
        worst = max(elements, key=lambda element: element.error or 0.0)
        return replace(row, status="same", reason=_BY_ELEMENT, difference=worst.difference, evidence=worst.evidence)

    def _add(self, name: str, tensor: torch.Tensor, spread: torch.Tensor | None) -> None:
        """Judge a value of the instrumented run; keep it while other nodes read it."""
        if name in self._run.outputs:
            self._effects[name] = _effect(self._run.outputs[name], tensor)
        if self._node_inputs.needs(name):
            self._node_inputs.put(name, tensor)
        self._rows[name] = self._judge(name, tensor, spread)
        self._node_inputs.consume(set(self._nodes[name].reads))

    def _judge(self, name: str, tensor: torch.Tensor | None, spread: torch.Tensor | None = None) -> Row:
        """Return the row of a value; release its reference after its last use."""
        exported_name, node = self._run.exported_name(name), self._nodes[name]
        original = self._references.get(exported_name)
        reference = self._lowered_reference(name, original, tensor)
        if self._checker is not None and tensor is not None:
            self._checker.record_output(node, name, tensor.dtype, tensor.shape)
        row = self._compared_row(self._node_row(name), reference, tensor, node, spread)
        if row.judged:
            self._judged.add(name)
        if row.diverged:
            row = _with_unjudged(row, self._graph, node, self._judged)
        # Modules' tensors are compared in the model's dtype: a value whose reference was cast or dropped is left out.
        if self._on_value is not None and tensor is not None and reference is original:
            self._on_value(exported_name, tensor, reference, row)
        self._uses_left[exported_name] -= 1
        if not self._uses_left[exported_name]:
            self._references.release(exported_name)
            if self._checker is not None:
                self._checker.release(exported_name)
        return row

    def _lowered_reference(
        self, name: str, reference: Reference | None, tensor: torch.Tensor | None
    ) -> Reference | None:
        """Return the reference of a value, adapted to its dtype if the program's precision was lowered."""
        lowered = self._run.lowered
        return reference if lowered is None else lowered.reference(name, reference, tensor)

    def _compared_row(
        self,
        row: Row,
        reference: Reference | None,
        tensor: torch.Tensor | None,
        node: Node,
        spread: torch.Tensor | None = None,
        *,
        observed: bool = True,
    ) -> Row:
        """Return a row with the difference of its value from the reference, and with the verdict by float64."""
        if tensor is not None:
            row = replace(row, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
        if kind := self._random.kind(row.value, node):
            row = random_row(row, kind, tensor, None if reference is None else reference.tensor)
            if row.random and row.status == "shape or dtype differs":
                self._random.mark_not_replaced(row.value)
            return row
        lowered = self._run.lowered
        reason = lowered.unjudged_reason(node, tensor) if lowered is not None else ""
        if not reason and reference is None and self._provenance is not None and row.kind != "output":
            reason = self._provenance.unmapped_reason(row.value)
        limit = self._limit(row.value, tensor, node)
        measure = partial(self._allowances.difference, row.value, node, self._node_inputs.values)
        measure = partial(measure, tolerance=limit, lower_precision=lowered is not None)
        row = _measured_row(row, tensor, reference, measure=measure, reason=reason)
        row = row if lowered is None else lowered.with_clipped(row, node, self._node_inputs.values, reference)
        if reference is None or tensor is None:
            return row
        if self._checker is not None and not is_quantized(limit):
            judge = partial(self._checker.verdict, inputs=self._node_inputs.values.get, observed=observed)
            verdict = judge(row.value, node, reference.tensor, tensor, spread)
            if verdict is None and row.diverged:
                verdict = self._checker.compiled_verdict(row.value, node, reference.tensor, tensor, spread)
            row = with_verdict(row, verdict)
        if row.status == "different" and row.difference is not None and lowered is None:
            row = replace(row, exact_in=exact_dtype(tensor, reference.tensor, row.difference))
        if self._run.on_row is not None:
            self._run.on_row(row, tensor, reference.tensor)
        return replace(row, spread=spread_of(tensor, reference.tensor)) if self._run.statistics else row

    def _limit(self, name: str, tensor: torch.Tensor | None, node: Node) -> float | Tolerance | None:
        """Return the tolerance of a value: its own, else that of the exported value that it stands for.

        A value that only the compiled graph has gets the tolerance of the coarsest dtype among it and what its node
        reads: the float32 mean of float16 numbers, for example. TF32 is as coarse as float16.
        """
        dtype = None if tensor is None else tensor.dtype
        own = self._limits.of(self._run.compiled.exported_name(name), dtype)
        limit = self._limits.of(self._run.exported_name(name), dtype) if own is None else own
        if tensor is None or not tensor.is_floating_point() or not (limit is None or isinstance(limit, Tolerance)):
            return limit
        dtypes = [] if limit is not None else [tensor.dtype, *filter(None, map(self._float_dtype, node.reads))]
        dtypes += [torch.float16] if self._checker is not None and self._checker.uses_tf32(name) else []
        tolerances = [*filter(None, [limit]), *map(default_tolerance, dtypes)]
        return max(tolerances, key=lambda item: item.harmonic)

    def _float_dtype(self, name: str) -> torch.dtype | None:
        """Return the dtype of an available value or of a weight; None if it is not known or no floating-point type."""
        tensor, value = self._node_inputs.values.get(name), self._graph.values.get(name)
        known = getattr(torch, (value and value.dtype) or "", None) if tensor is None else tensor.dtype
        return known if isinstance(known, torch.dtype) and known.is_floating_point else None

    def _row(self, name: str, node: Node, index: int, kind: str) -> Row:
        run, module, source = self._run, node.module, node.source
        return Row(run.call, run.stage, index, kind, node.name, node.op, name, module=module, source=source)

    def _node_row(self, name: str) -> Row:
        """Return the row of a value before its comparison, with the facts about its node."""
        node, provenance = self._nodes[name], self._provenance
        computes = provenance.of(node) if provenance else ()
        origin = provenance.node_with_module(node) if provenance else node
        kind = "fused" if len(computes) > 1 else "node"
        if name in self._graph.constant_values:
            kind = "constant"
        elif provenance is not None and provenance.is_inserted(node):
            kind = "inserted"
        return replace(
            self._row(name, node, self._indices[name], kind),
            module=node.module if node.module is not None else origin.module,
            source=node.source or origin.source,
            origins=tuple(item.name for item in computes),
            operators=tuple(item.op for item in computes),
            code=node.code,
            seconds=self._run.seconds.get(node.name),
        )

    def _output_row(self, name: str) -> Row:
        graph = self._graph
        if name in self._rows and self._random.varies(name):  # the plain run draws other random numbers
            return replace(self._rows[name], index=len(graph.nodes), kind="output", origins=(), operators=(), behind=())
        node = graph.producer.get(name) or Node(name, "", (), (name,))
        tensor = self._run.outputs.get(name)
        original = self._references.get(self._run.exported_name(name))
        reference = self._lowered_reference(name, original, tensor)
        row = self._row(name, node, len(graph.nodes), "output")
        observed = self._effects.get(name, row) is None  # the output is that of the instrumented run
        return self._compared_row(row, reference, tensor, node, observed=observed)


def allowances_of(
    run: Run, provenance: NodeProvenance | None, constant: Callable[[str], torch.Tensor | None] = lambda _: None
) -> Allowances:
    """Return the allowances of a run; `constant` returns a constant of the program, None for any other value."""
    nodes_of = (lambda node: (node,)) if provenance is None else provenance.rounding_nodes
    return Allowances(nodes_of, run.exported_name, constant)


def compare_values(
    run: Run,
    values: Mapping[str, torch.Tensor],
    references: Mapping[str, Reference],
    provenance: NodeProvenance | None,
    limits: Limits,
    *,
    float64: Float64Values | None = None,
    node_values: Callable[[TensorLookup], Float64Values] | None = None,
    uninitialized: Collection[str] = (),
) -> tuple[list[Row], Difference | None]:
    """Return the rows of a completed run, and the difference that instrumentation makes to its outputs.

    Args:
        run: the run.
        values: the values of the instrumented run.
        references: see `ValueComparator`.
        provenance: see `ValueComparator`.
        limits: see `ValueComparator`.
        float64: the float64 values by exported name; None judges by tolerance.
        node_values: see `Float64Checker`.
        uninitialized: the exported names of the values that are uninitialized memory.
    """
    computes: Callable[[Node], Sequence[Node]] = (lambda node: (node,)) if provenance is None else provenance.of
    exported = run.graph if provenance is None else provenance.exported
    checker = None
    if float64 is not None:
        named = ((run.exported_name(name), tensor) for name, tensor in values.items())
        decisions = {name: tensor for name, tensor in named if float64.decides(name, tensor)}
        others = any(
            not matches_float64(tensor, float64.get(name))
            or (name in references and differ(references[name].tensor, tensor, unit_of(tensor.dtype)))
            for name, tensor in decisions.items()
        )
        known = decisions if others else {}
        checker = Float64Checker(float64, run, computes, exported, node_values=node_values, decisions=known)
    random = RandomValues(run, Unpredictable(uninitialized=frozenset(uninitialized)), computes)
    comparator = ValueComparator(run, ReferenceResolver(references), provenance, limits, checker=checker, random=random)
    rows = comparator.rows((name, tensor, None) for name, tensor in in_order(run.graph, values))
    return rows, comparator.observer_effect


def with_covered(rows: Sequence[Row], graph: Graph, provenance: NodeProvenance) -> list[Row]:
    """Return the rows of a compiled graph; those that introduce an error also name removed and folded nodes."""
    diverged = {row.value for row in rows if row.diverged and row.kind != "output"}

    def with_removed(row: Row) -> Row:
        node = graph.producer.get(row.value)
        introduced = row.introduced or (row.diverged and node is not None and diverged.isdisjoint(node.reads))
        if node is None or not introduced or row.kind == "output":
            return row
        covered = provenance.covers(node, row.value)
        operators = tuple(item.op for item in covered if item.op != "Constant")  # constants compute nothing
        return replace(row, origins=tuple(item.name for item in covered), operators=operators)

    return [with_removed(row) for row in rows]


def in_order(graph: Graph, values: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and values that the nodes of a graph compute, in the order of execution."""
    names = (name for node in graph.nodes for name in node.outputs)
    return ((name, values[name]) for name in names if name in values)


def largest_effect(effects: Iterable[Difference | None]) -> Difference | None:
    """Return the largest difference, ignoring None; one that can't be measured is the largest."""
    differences = [effect for effect in effects if effect is not None]
    return max(differences, key=lambda effect: (bool(effect.problem), effect.error), default=None)


def _effect(plain: torch.Tensor, observed: torch.Tensor) -> Difference | None:
    """Return the difference that instrumentation makes to an output; None if both are bitwise equal."""
    same = (plain.shape, plain.dtype) == (observed.shape, observed.dtype)
    if same and torch.equal(bytes_of(plain).to(observed.device), bytes_of(observed)):
        return None
    return compare_tensors(observed, plain)


_BY_ELEMENT = "a sequence of tensors: judged by its elements"


def _with_unjudged(row: Row, graph: Graph, node: Node, judged: set[str]) -> Row:
    """Return a diverged row with the unjudged nodes before it, any of which may have introduced the error."""
    if all(name in judged for name in node.reads):
        return row
    nodes = graph.cone([row.value], judged)
    if row.stage == "compiled":
        behind = (
            item.name for item in nodes if item is not node and not graph.constant_values.issuperset(item.outputs)
        )
        return replace(row, behind=tuple(behind))
    return replace(row, origins=tuple(item.name for item in nodes), operators=tuple(item.op for item in nodes))


def _measured_row(
    row: Row,
    actual: torch.Tensor | None,
    reference: Reference | None,
    *,
    measure: Callable[[torch.Tensor, torch.Tensor], Difference],
    reason: str,
) -> Row:
    """Return a row with its difference, or with `reason` if it has no reference."""
    if actual is None and operator_of(row.op).returns_sequence:
        return replace(row, status="no value", reason=_BY_ELEMENT)
    if reference is None:
        if reason:
            return replace(row, status="no value", reason=reason)
        return replace(row, status="not mapped", reason="no reference for this value")
    if actual is None:
        return replace(row, status="no value", reason="the backend does not return it", evidence=reference.evidence)
    difference = measure(actual, reference.tensor)
    status: Status = "same" if difference.close else "shape or dtype differs" if difference.problem else "different"
    reason = difference.problem or ""
    return replace(row, status=status, reason=reason, evidence=reference.evidence, difference=difference)
