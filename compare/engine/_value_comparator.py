"""Compare the values of a graph with their references, and make the rows of a run."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from filch.export import Graph, Node
from filch.export.evaluation._onnx_node import evaluate_alone
from filch.export.evaluation._unpredictable import Unpredictable
from filch.export.program._original import weight

from ..common._complex import complex_as_real
from ..common._dtypes import declared_dtype
from ..common._value_cache import ValueCache
from ..float64._noise import unit_of
from ..float64._verdict import Float64Value, RoundingVerdict, rounding_verdict
from ..judging._judge import Judge
from ..judging._run import ObservedValue, Run, TensorLookup
from ..metrics._limits import Limits
from ..metrics._metrics import Difference, bytes_of, compare_tensors
from ..metrics._spread import spread_of
from ..metrics._summed_sizes import SUMMED
from ..metrics._tolerance import Tolerance, default_tolerance
from ..provenance._provenance import NodeProvenance
from ..references._resolver import Reference, ReferenceResolver
from ..results._rows import DIVERGED, JudgedValue, Row, Status
from ._allowances import Allowances
from ._coarser_dtypes import exact_dtype
from ._isolated_nodes import first_difference, is_wrong
from ._random import RandomValues, random_value

# Receives a value by its name in the exported graph, its reference and what is known of it.
OnValue = Callable[[str, torch.Tensor, Reference | None, JudgedValue], None]
Summed = Callable[[str, torch.Tensor], Difference | None]
_ACCUMULATED = 16.0  # rounding levels, up to which rounding errors may add up in one direction
_BY_ELEMENT = "a sequence of tensors: judged by its elements"


class ValueComparator:
    """Compare each value of one run with its reference.

    Args:
        run: the run.
        references: the references of its values.
        provenance: for a compiled graph, the exported nodes that its nodes compute.
        limits: the tolerance of each value.
        on_value: called with each value and what is known of it.
        judge: judges by float64; its verdict takes precedence over the tolerance.
        constant: returns a constant of the program by its name; None for any other value.
        random: identifies random values and uninitialized memory; by default there are none.
        reasons: why values have no reference, by the names of their nodes.
        summed: returns the difference of a value that is no further off than rounding of what was summed; else None.

    Attributes:
        values: what is known of each value that a node computes, by its name.
        outputs: what is known of each output of the plain run.
        allowances: the magnitudes that rounding is relative to.
        random: see above.
    """

    def __init__(  # noqa: PLR0917  called in two places
        self,
        run: Run,
        references: ReferenceResolver,
        provenance: NodeProvenance | None,
        limits: Limits,
        on_value: OnValue | None = None,
        judge: Judge | None = None,
        constant: TensorLookup = lambda _: None,
        random: RandomValues | None = None,
        *,
        reasons: Mapping[str, str] = MappingProxyType({}),
        summed: Summed = lambda *_: None,
    ) -> None:
        self.values: dict[str, JudgedValue] = {}
        self.outputs: list[JudgedValue] = []
        self._run, self._references, self._provenance, self._limits = run, references, provenance, limits
        self._on_value, self._judge, self._reasons, self._summed = on_value, judge, reasons, summed
        self._constant = constant
        nodes_of = (lambda node: (node,)) if provenance is None else provenance.rounding_nodes
        self.allowances = Allowances(nodes_of, run.exported_name, constant)
        self.random = random or RandomValues(run, Unpredictable(), lambda node: (node,))
        self._rows = RunRows(run, provenance, self.random)
        self._graph = graph = run.graph
        self._nodes = graph.producer
        # Outputs are judged a second time at the end, which needs the inputs of their nodes.
        outputs = [name for name in graph.outputs if name in self._nodes]
        uses = Counter(read for name in [*self._nodes, *outputs] for read in set(self._nodes[name].reads))
        self._node_inputs = ValueCache[torch.Tensor](uses)
        for name, tensor in run.inputs.items():
            self._node_inputs.put(name, tensor)
        self._uses_left = Counter(map(run.exported_name, [*self._nodes, *graph.outputs]))  # by exported names
        self._effects: dict[str, Difference | None] = {}  # of the outputs that were observed; see `_effect`

    @property
    def observer_effect(self) -> Difference | None:
        """The largest difference between outputs with and without instrumentation; None if they are bitwise equal."""
        return largest_effect(
            # An output that the instrumented run does not return is the largest difference.
            self._effects[name] if name in self._effects else compare_tensors(None, output)
            for name, output in self._run.outputs.items()
            if name in self._nodes and not self.random.varies(name)
        )

    def compare(self, observed: Iterable[ObservedValue]) -> None:
        """Compare each value that a node computes, in order, then each output of the plain run.

        Args:
            observed: the values of the instrumented run, in the order of execution.
        """
        for name, tensor, spread in observed:
            if name in self._nodes:
                self._judge_observed(name, complex_as_real(tensor), spread)
        self.values |= {name: self._judged_value(name, None) for name in self._nodes if name not in self.values}
        self.values |= {name: value for name in self._nodes if (value := self._by_elements(name)) is not None}
        self.outputs = [self._judged_output(name) for name in self._graph.outputs]

    def rows(self, isolated: Mapping[str, RoundingVerdict] | None = None) -> list[Row]:
        """Return a row for each value that a node computes, in order, then one for each output of the plain run.

        Args:
            isolated: see `RunRows.rows`.
        """
        return self._rows.rows(self.values, self.outputs, isolated)

    def _by_elements(self, name: str) -> JudgedValue | None:
        """Return what is known of a sequence that is not judged itself but whose elements are all right; else None."""
        users, operator = self._graph.consumers.get(name, ()), self._nodes[name].operator
        is_sequence = operator.returns_sequence and all(user.operator.movement == "part" for user in users)
        if self.values[name].judged or not is_sequence:
            return None
        elements = [self.values[output] for user in users for output in user.outputs]
        if not elements or any(element.status != "same" for element in elements):
            return None
        worst = max(elements, key=lambda item: 0.0 if item.difference is None else item.difference.error)
        return JudgedValue(name, "same", _BY_ELEMENT, evidence=worst.evidence, difference=worst.difference)

    def _judge_observed(self, name: str, tensor: torch.Tensor, spread: torch.Tensor | None) -> None:
        """Compare a value of the instrumented run; keep it while other nodes read it."""
        if name in self._run.outputs:
            self._effects[name] = _effect(self._run.outputs[name], tensor)
        if self._node_inputs.needs(name):
            self._node_inputs.put(name, tensor)
        if self._judge is not None:
            self._judge.facts.record(self._nodes[name], name, tensor.dtype, tensor.shape)
        self.values[name] = self._judged_value(name, tensor, spread)
        self._node_inputs.consume(set(self._nodes[name].reads))

    def _judged_value(self, name: str, tensor: torch.Tensor | None, spread: torch.Tensor | None = None) -> JudgedValue:
        """Compare a value; release its reference after its last use."""
        exported_name = self._run.exported_name(name)
        original = self._references.get(exported_name)
        reference = self._lowered_reference(name, original, tensor)
        value = self._judged(name, self._nodes[name], reference, tensor, spread)
        # Modules' tensors are compared in the model's dtype: a value whose reference was cast or dropped is left out.
        if self._on_value is not None and tensor is not None and reference is original:
            self._on_value(exported_name, tensor, reference, value)
        self._uses_left[exported_name] -= 1
        if not self._uses_left[exported_name]:
            self._references.release(exported_name)
            if self._judge is not None:
                self._judge.facts.release(exported_name)
        return value

    def _judged_output(self, name: str) -> JudgedValue:
        """Compare an output of the run without instrumentation, unless it is random."""
        if name in self.values and self.random.varies(name):  # the plain run draws other random numbers
            return self.values[name]
        tensor = self._run.outputs.get(name)
        reference = self._lowered_reference(name, self._references.get(self._run.exported_name(name)), tensor)
        return self._judged(name, self._rows.node(name), reference, tensor, is_output=True)

    def _lowered_reference(self, name: str, known: Reference | None, tensor: torch.Tensor | None) -> Reference | None:
        """Return the reference of a value, adapted to its dtype if the program's precision was lowered."""
        if self._run.lowered is None or known is None:
            return known
        lowered = self._run.lowered.reference(name, known.tensor, tensor)
        return known if lowered is known.tensor else None if lowered is None else replace(known, tensor=lowered)

    def _judged(
        self,
        name: str,
        node: Node,
        reference: Reference | None,
        tensor: torch.Tensor | None,
        spread: torch.Tensor | None = None,
        *,
        is_output: bool = False,
    ) -> JudgedValue:
        """Compare a value, and judge it by float64 if possible, else by the tolerance."""
        if kind := self.random.kind(name, node):
            value = random_value(name, kind, tensor, None if reference is None else reference.tensor)
            if value.random and value.status == "shape or dtype differs":
                self.random.mark_not_replaced(name)
            return value
        if reference is None or tensor is None:
            return self._unjudged(name, node, reference, tensor, is_output=is_output)
        limit = self._tolerance(name, tensor, node)
        difference = self._difference(name, node, reference.tensor, tensor, limit)
        verdict = None
        if self._judge is not None:
            verdict = self._judge.verdict(
                name,
                node,
                reference.tensor,
                tensor,
                spread,
                inputs=self._node_inputs.values.get,
                observed=not is_output or self._effects.get(name, difference) is None,  # that of the instrumented run
                differs=not difference.close,
                tolerance=limit,
            )
        if difference.problem and verdict is not None and not (verdict.sound and verdict.follows):
            verdict = None  # another shape is right if the decisions of the run lead to it
        status, reason = _status(difference, verdict), "" if verdict is not None else difference.problem or ""
        summed = self._summed(name, tensor) if status in DIVERGED else None
        if summed is not None:
            status, reason, difference, verdict = "same", SUMMED, summed, None
        is_seen = status == "different" and self._run.lowered is None  # with lower precision, coarser dtypes are right
        value = JudgedValue.of(
            name,
            tensor,
            status,
            reason,
            evidence=reference.evidence,
            difference=difference,
            float64=verdict,
            exact_in=exact_dtype(tensor, reference.tensor, difference) if is_seen else "",
            spread=spread_of(tensor, reference.tensor) if self._run.statistics else None,
        )
        if self._run.on_row is not None:
            self._run.on_row(self._rows.row(value, is_output=is_output), tensor, reference.tensor)
        return value

    def _unjudged(
        self, name: str, node: Node, reference: Reference | None, tensor: torch.Tensor | None, *, is_output: bool
    ) -> JudgedValue:
        """Return why a value that is missing, or has no reference, is not judged."""
        if tensor is None and node.operator.returns_sequence:
            return JudgedValue(name, "no value", _BY_ELEMENT)
        if reference is not None:
            return JudgedValue(name, "no value", "the backend does not return it", evidence=reference.evidence)
        reason = "" if self._run.lowered is None else self._run.lowered.unjudged_reason(node, tensor)
        if not reason and self._provenance is not None and not is_output:
            reason = self._provenance.unmapped_reason(name)
        own = None if tensor is None or is_output else self._by_inputs(name, node, tensor)
        if own is not None:
            return own
        if reason:
            return JudgedValue.of(name, tensor, "no value", reason)
        return JudgedValue.of(name, tensor, "not mapped", self._reasons.get(node.name, "no reference for this value"))

    def _by_inputs(self, name: str, node: Node, tensor: torch.Tensor) -> JudgedValue | None:
        """Judge a value that only the compiled graph has by what float64 computes from what its node has read.

        Returns:
            that it is right; None if what the node has read is not known to be right, or does not explain the value.
        """
        operator = node.operator
        # A quantized node may read another scale than the model. Sums would take as long as they do in the runtime.
        if self._judge is None or operator.quantization or operator.product is not None or operator.terms is not None:
            return None
        read = [self._right_input(item) if item else None for item in node.inputs]
        if self._run.stage != "compiled" or any(
            item is None for item, its in zip(read, node.inputs, strict=True) if its
        ):
            return None
        outputs, position = evaluate_alone(node, read), node.outputs.index(name)
        exact = outputs[position] if outputs is not None and position < len(outputs) else None
        if not isinstance(exact, torch.Tensor) or exact.shape != tensor.shape:
            return None
        unit, expected = unit_of(tensor.dtype), exact.to(tensor.dtype)
        verdict = rounding_verdict(tensor, expected, Float64Value(exact, exact, unit), unit=unit)
        if verdict is None or not verdict.sound:
            return None
        difference = self._difference(name, node, expected, tensor, self._tolerance(name, tensor, node))
        return JudgedValue.of(name, tensor, "same", "", evidence="derived", difference=difference, float64=verdict)

    def _right_input(self, name: str) -> torch.Tensor | None:
        """Return what a node has read, by name; None if it is not known, or not known to be right."""
        value = self.values.get(name)
        if value is not None and value.status != "same":
            return None
        tensor = self._node_inputs.values.get(name)
        tensor = self._constant(name) if tensor is None else tensor
        if tensor is None and self._graph.onnx is not None:  # the optimizer may write sizes of its own
            own = weight(self._graph.onnx, name)
            return None if own is None or own.is_floating_point() else own
        return tensor

    def _difference(
        self, name: str, node: Node, reference: torch.Tensor, tensor: torch.Tensor, limit: float | Tolerance | None
    ) -> Difference:
        """Measure how far a value is from its reference."""
        inputs, lowered = self._node_inputs.values, self._run.lowered
        magnitude = partial(self.allowances.magnitude, name, node, inputs, tensor, reference)
        difference = compare_tensors(
            tensor, reference, tolerance=limit, magnitude=magnitude, lower_precision=lowered is not None
        )
        clipped = 0 if lowered is None or difference.problem else lowered.clipped(node, inputs, reference)
        return replace(difference, clipped=difference.clipped + clipped) if clipped else difference

    def _tolerance(self, name: str, tensor: torch.Tensor, node: Node) -> float | Tolerance | None:
        """Return the tolerance of a value: its own, else that of the exported value that it stands for.

        A value that only the compiled graph has gets the tolerance of the coarsest dtype among it and what its node
        reads: the float32 mean of float16 numbers, for example. TF32 is as coarse as float16.
        """
        own = self._limits.of(self._run.compiled.exported_name(name), tensor.dtype)
        limit = self._limits.of(self._run.exported_name(name), tensor.dtype) if own is None else own
        if not tensor.is_floating_point() or not (limit is None or isinstance(limit, Tolerance)):
            return limit
        dtypes = [] if limit is not None else [tensor.dtype, *filter(None, map(self._float_dtype, node.reads))]
        dtypes += [torch.float16] if self._judge is not None and self._judge.facts.uses_tf32(name) else []
        tolerances = [*filter(None, [limit]), *map(default_tolerance, dtypes)]
        return max(tolerances, key=lambda item: item.harmonic)

    def _float_dtype(self, name: str) -> torch.dtype | None:
        """Return the dtype of an available value or of a weight; None if it is not known or no floating-point type."""
        tensor = self._node_inputs.values.get(name)
        dtype = declared_dtype(self._graph, name) if tensor is None else tensor.dtype
        return dtype if dtype is not None and dtype.is_floating_point else None


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


def _status(difference: Difference, verdict: RoundingVerdict | None) -> Status:
    """Return the status of a value: by float64 if it has judged it, else by the tolerance."""
    if verdict is not None:
        return "different" if verdict.verdict in ("wrong", "unstable") else "same"
    return "same" if difference.close else "shape or dtype differs" if difference.problem else "different"


class RunRows:
    """Make the rows of a run, each of a value that was judged and the facts about its node.

    Args:
        run: the run.
        provenance: for a compiled graph, the exported nodes that its nodes compute.
        random: identifies the nodes that draw random numbers.
    """

    def __init__(self, run: Run, provenance: NodeProvenance | None, random: RandomValues) -> None:
        self._run, self._graph, self._provenance, self._random = run, run.graph, provenance, random
        # By value, not by node: nodes of a foreign file may share a name.
        self._indices = {name: index for index, node in enumerate(run.graph.nodes) for name in node.outputs}

    def rows(
        self,
        values: Mapping[str, JudgedValue],
        outputs: Sequence[JudgedValue],
        isolated: Mapping[str, RoundingVerdict] | None,
    ) -> list[Row]:
        """Return a row for each value that a node computes, in order, then one for each output of the plain run.

        Args:
            values: what is known of each value, by its name.
            outputs: the same of each output.
            isolated: the verdicts on nodes in isolation, by the names of their values; None for a run of a graph from
                Dynamo, whose kernels name only what they compute.
        """
        graph, alone = self._graph, isolated or {}
        is_rounding = isolated is not None and _is_accumulated(values, outputs, alone, graph)
        judged = {*graph.inputs, *graph.constants, *(name for name, value in values.items() if value.judged)}
        diverged = set() if is_rounding else {name for name, value in values.items() if value.diverged}
        rows = []
        for name, node in graph.producer.items():
            more: dict[str, Any] = {"isolated": alone.get(name)}
            if values[name].diverged and not judged.issuperset(node.reads):
                more |= self._with_unjudged(name, judged)
            is_introduced = name in diverged and diverged.isdisjoint(node.reads)
            may_be_removed = isolated is not None and (is_introduced or is_wrong(alone.get(name)))
            if self._provenance is not None and may_be_removed:
                more |= self._with_removed(name, self._provenance)
            rows.append(self.row(values[name], is_rounding=is_rounding, **more))
        return rows + [self.row(value, is_output=True, is_rounding=is_rounding) for value in outputs]

    def row(self, value: JudgedValue, *, is_output: bool = False, is_rounding: bool = False, **more: Any) -> Row:
        """Return the row of a value.

        Args:
            value: what is known of the value.
            is_output: whether it is an output of the plain run.
            is_rounding: whether rounding that adds up explains what differs.
            **more: further attributes.
        """
        run, node = self._run, self.node(value.value)
        more = (self._of_output(node) if is_output else self._of_node(value.value, node)) | vars(value) | more
        more["random"] = value.random or self._random.draws(node)
        if is_rounding and value.diverged and value.float64 is not None:
            note = "each node is right by itself"
            more |= {"status": "same", "float64": replace(value.float64, verdict="suspicious", note=note)}
        return Row(run.call, run.stage, node=node.name, op=node.op, **more)

    def node(self, name: str) -> Node:
        """Return the node that computes a value; an output may be an input."""
        return self._graph.producer.get(name) or Node(name, "", (), (name,))

    def _of_output(self, node: Node) -> dict[str, Any]:
        """Return the facts about the node of an output, which comes after all nodes."""
        return {"index": len(self._graph.nodes), "kind": "output", "module": node.module, "source": node.source}

    def _of_node(self, name: str, node: Node) -> dict[str, Any]:
        """Return the facts about the node of a value."""
        provenance = self._provenance
        computes = provenance.of(node) if provenance else ()
        origin = provenance.node_with_module(node) if provenance else node  # the last one with a module
        kind = "fused" if len(computes) > 1 else "node"
        sources = (item.source for item in (node, origin, *reversed(computes)))
        if name in self._graph.constant_values:
            kind = "constant"
        elif provenance is not None and provenance.is_inserted(node):
            kind = "inserted"
        return {
            "index": self._indices[name],
            "kind": kind,
            "module": node.module if node.module is not None else origin.module,
            "source": next(filter(None, sources), None),
            **_origins(computes),
            "code": node.code,
            "seconds": self._run.seconds.get(node.name),
        }

    def _with_unjudged(self, name: str, judged: set[str]) -> dict[str, Any]:
        """Return the unjudged nodes before a value that diverged, any of which may have introduced the error."""
        graph, constants = self._graph, self._graph.constant_values
        nodes = graph.cone([name], judged)
        if self._run.stage != "compiled":
            return _origins(nodes)
        own = graph.producer[name]
        behind = (item.name for item in nodes if item is not own and not constants.issuperset(item.outputs))
        return {"behind": tuple(behind)}

    def _with_removed(self, name: str, provenance: NodeProvenance) -> dict[str, Any]:
        """Return the nodes in which the error of a compiled value may originate, also removed and folded ones."""
        covered = provenance.covers(self._graph.producer[name], name)
        operators = tuple(item.op for item in covered if item.op != "Constant")  # constants compute nothing
        return _origins(covered) | {"operators": operators}


def _origins(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the attributes of a row that name exported nodes in which its error may originate."""
    return {"origins": tuple(item.name for item in nodes), "operators": tuple(item.op for item in nodes)}


def _is_accumulated(
    values: Mapping[str, JudgedValue],
    outputs: Sequence[JudgedValue],
    isolated: Mapping[str, RoundingVerdict],
    graph: Graph,
) -> bool:
    """Return whether rounding may have added up to the errors of all values that differ.

    Rounding errors may add up in one direction, which the noise of the float64 run does not show. This explains errors
    of up to `_ACCUMULATED` rounding levels and other integers, if each node that computes the first of these values is
    right by itself, and so is each other node that ran in isolation.
    """
    names = first_difference(values, graph)
    differing = (value for value in (*values.values(), *outputs) if value.diverged)
    if not names or not all(map(_may_be_accumulated, differing)):
        return False
    return all(
        isolated[name].sound if name in isolated else _is_right(value)
        for name, value in values.items()
        if name in isolated or graph.producer[name].name in names
    )


def _may_be_accumulated(value: JudgedValue) -> bool:
    """Whether a value is wrong by no more than rounding errors may add up to, or by other integers."""
    verdict = value.float64
    if verdict is None or verdict.verdict != "wrong":
        return False
    return verdict.ratio < _ACCUMULATED or (value.dtype or "").startswith(("int", "uint", "bool"))


def _is_right(value: JudgedValue) -> bool:
    """Whether a value is right; one that can't be judged is judged with the nodes that read it."""
    return not value.judged or (value.float64 is not None and value.float64.verdict == "same")
