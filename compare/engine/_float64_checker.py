"""Judge the values of one run by float64."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType

import torch

from filch.export import Graph, Node
from filch.steal import Product

from ..float64 import (
    Compared,
    Decisions,
    Flips,
    Float64Value,
    Float64Values,
    ObservedShapes,
    RoundingVerdict,
    Verdict,
    differ,
    differing,
    flips_of,
    identical_verdict,
    largest_distance,
    product_of,
    reduction_length,
    rounding_level,
    rounding_verdict,
    running_length,
    unit_of,
)
from ..float64._reductions import TF32_UNIT
from ..float64._ties import selecting_node, unordered_axes, unordered_indices, with_ties
from ..float64._verdict import BOTH_WRONG, SUSPICIOUS, UNRELIABLE, WRONG, shares_error
from ..metrics._metrics import are_equal, replace_masks
from ..results._rows import Row
from ._compared_numbers import ComparedNumbers, TensorLookup
from ._near_ties import Ties, chooses_nearest, with_near_ties
from ._other_decisions import OtherDecisions
from ._rounded_operands import RoundedOperands
from ._run import Run

# Units of float32 that each addition of the same number adds to the rounding level. To the error, it adds up to 1/24
# of a unit in ONNX Runtime's kernels, and 1/6 in a plain loop, which is less than what is wrong.
_SYSTEMATIC = 1 / 16
_SAMPLE, _REPEATED = 2**12, 8  # elements that are looked at, and how often each number is among them on average


class Float64Checker:
    """Decide for each value of a run whether its error exceeds rounding.

    The rounding unit is that of the value's dtype in the model, not in the run: an additional cast is an error. If
    lower precision is allowed, the unit is that of the coarsest dtype among the value and its ancestors.

    Args:
        float64: the values in float64; those that will not be judged again can be released.
        run: the run.
        computes: returns the nodes of the exported graph that a node of the run computes.
        exported: the exported graph.
        lower_precision: whether lower precision is allowed.
        replaced: the names of the values whose consumers read the reference instead.
        compiled: returns float64 values of the values that only the compiled graph has; called when they are needed.
        node_values: returns the float64 outputs of each node, computed from the inputs of the node that a function
            returns by their exported names; None does not judge decisions by them.
        rerun: the same, for operands that a node rounds and, with `ties`, numbers that it chooses; None is
            `node_values`.
        decisions: see `OtherDecisions`.
        constant: returns a constant of the exported graph by its name; None for any other value.
        shapes: the shapes of values in the call, by their exported names; those of the run are added. A file need not
            declare them, and sums that long may round more.
        original: the graph as the model was exported, if it may have been changed since.

    Attributes:
        suspects: the values of the whole run that agree with the model's although both are far from float64, and that
            are computed from values which are not: in isolation, their nodes tell a wrong kernel from rounding errors
            that have grown.
    """

    def __init__(
        self,
        float64: Float64Values,
        run: Run,
        computes: Callable[[Node], Sequence[Node]],
        exported: Graph,
        *,
        lower_precision: bool = False,
        model_tf32: Collection[Product] = frozenset(),
        replaced: Collection[str] = frozenset(),
        compiled: Callable[[], Float64Values] | None = None,
        node_values: Callable[..., Float64Values] | None = None,
        rerun: Callable[..., Float64Values] | None = None,
        decisions: Mapping[str, torch.Tensor] = MappingProxyType({}),
        constant: TensorLookup = lambda _: None,
        shapes: dict[str, tuple[int, ...]] | None = None,
        original: Graph | None = None,
    ) -> None:
        self.float64 = float64
        self._any_order = unordered_indices(original or exported)
        self._open_axes, self._selected = unordered_axes(original or exported), dict[str, torch.Tensor]()
        self._rounded = RoundedOperands(computes, original, lower_precision=lower_precision)
        self._compiled, self._node_values, self._rerun = compiled, node_values, rerun or node_values
        self._chosen: dict[str, Float64Value] = {}
        self.suspects: set[str] = set()
        self._is_isolated = bool(replaced)
        self._wrong: set[str] = set()
        self._off: set[str] = set()
        self._recorded: set[str] = set()
        self._decisions = Decisions(float64)
        self._run = run
        self._computes = computes
        self._exported = exported
        self._shapes = {} if shapes is None else shapes
        self._shapes.update((name, tuple(tensor.shape)) for name, tensor in run.inputs.items())
        self._lower_precision = lower_precision
        graph = run.graph
        dtypes = {name: getattr(torch, graph.values[name].dtype or "", None) for name in graph.constants}
        dtypes |= {name: tensor.dtype for name, tensor in run.inputs.items()}
        floats = (name for name, dtype in dtypes.items() if isinstance(dtype, torch.dtype) and unit_of(dtype))
        self._others = OtherDecisions(float64, floats, decisions)
        self._run_names = {run.exported_name(name): name for name in graph.producer}
        self._constant = constant
        self._compared = ComparedNumbers(exported, self._run_names, constant)
        self._hidden_uses = Counter(chain.from_iterable(map(self._hidden_in, self._run_names)))
        model_units = {name: self._model_unit(name) for name in dtypes}
        own_units = {
            name: unit_of(dtype) if lower_precision else model_units[name]
            for name, dtype in dtypes.items()
            if isinstance(dtype, torch.dtype)
        }
        self._constant_units = {} if run.lowered is None else run.lowered.units
        own_units |= {name: max(own_units.get(name, 0.0), unit) for name, unit in self._constant_units.items()}
        self._units = _CoarsestUnits(graph, own_units, replaced, partial(self._product_unit, run.compiled.tf32))
        self._model_units = _CoarsestUnits(graph, model_units, replaced)
        self._reference_units = _CoarsestUnits(graph, model_units, replaced, partial(self._reference_unit, model_tf32))

    def _model_unit(self, name: str) -> float:
        return self.float64.unit(self._run.exported_name(name))

    def record_output(self, node: Node, name: str, dtype: torch.dtype, shape: Sequence[int] | None) -> None:
        """Record the dtype and shape of a node's output; call it for each value in the order of execution."""
        # A fused node may return what it computes another of its values from.
        within = {self._run_names.get(output, "") for item in self._computes(node) for output in item.outputs}
        reads = {*self._known_reads(node), *(within & self._recorded)}
        self._recorded.add(name)
        self._rounded.record_output(node, name)
        if shape is not None:
            self._shapes[self._run.exported_name(name)] = tuple(shape)
        self._others.follow(name, reads, dtype)
        model_unit = self._model_unit(name)
        own_unit = max(unit_of(dtype), self._constant_units.get(name, 0.0)) if self._lower_precision else model_unit
        self._units.add(node, name, own_unit)
        self._model_units.add(node, name, model_unit)
        self._reference_units.add(node, name, model_unit)

    def _product_unit(self, tf32: Collection[Product], node: Node) -> float:
        """Return the unit to which the backend rounds the factors of the products of a node; 0 if it has none."""
        return max(self._reference_unit(tf32, node), self._rounded.own_unit(node))

    def _reference_unit(self, tf32: Collection[Product], node: Node) -> float:
        """Return the same for the reference, some of whose nodes may round their operands by definition."""
        return max(self._tf32_unit(tf32, node), self._rounded.model_unit(node))

    def _tf32_unit(self, tf32: Collection[Product], node: Node) -> float:
        # A product of weights alone is a constant of the exported graph, which the compiled node has to compute.
        return TF32_UNIT if tf32 and any(product_of(item) in tf32 for item in (node, *self._computes(node))) else 0.0

    def uses_tf32(self, name: str) -> bool:
        """Return whether the run or the model may have rounded factors to TF32 on the way to a recorded value."""
        units = self._units.get(name), self._reference_units.get(name)
        return max(units) >= TF32_UNIT > self._model_units.get(name)

    def _known_reads(self, node: Node) -> Iterator[str]:
        """Yield what a node reads; what has no dtype, such as a tuple, stands for what it was computed from."""
        pending, visited = [*node.reads], set[str]()
        while pending:
            name = pending.pop()
            producer = None if name in self._recorded else self._run.graph.producer.get(name)
            if name not in visited and producer is None:
                yield name
            elif name not in visited and producer is not None:
                pending += producer.reads
            visited.add(name)

    def verdict(
        self,
        name: str,
        node: Node,
        reference: torch.Tensor | None,
        tensor: torch.Tensor,
        spread: torch.Tensor | None = None,
        *,
        inputs: TensorLookup = lambda _: None,
        observed: bool = True,
    ) -> RoundingVerdict | None:
        """Return the verdict on a value; None if there is no float64 value to compare it with.

        Call it for each value in the order of execution: a value may be judged by what float64 computes from other
        decisions than those of the model (see `Decisions`), if the run has made them.

        Args:
            name: its name in the run, as passed to `record_output`.
            node: the node that computes it.
            reference: the expected tensor; None is the float64 value, rounded.
            tensor: the actual tensor.
            spread: the largest difference of each element between repeated runs.
            inputs: returns what the node has read, by name; None for a weight and what is not known.
            observed: whether the value is of the same run as the other ones, or equal to that; a run without
                instrumentation may make other decisions.
        """
        exported_name = self._run.exported_name(name)
        decides = self.float64.decides(exported_name, tensor)
        value = _JudgedValue(name, exported_name, node, reference, tensor, spread, inputs, is_decision=decides)
        value = self._with_near_ties(value)
        verdict = self._verdict_by(self._exact, value)
        self._record_unaffected(verdict, value)
        shared = self._shared_error(verdict, value)
        if shared is not None:
            return shared
        if verdict is None or verdict.verdict != "same":
            verdict, value = self._verdict_by_other_decisions(verdict, value, observed=observed)
            verdict = self._verdict_by_hidden_decisions(verdict, value) if observed else verdict
            verdict = self._verdict_by_rounded_operands(verdict, value)
        if value.reference is not None:
            self._compared.add_reference(value.exported_name, value.reference)
        if verdict is None:
            return verdict
        if not observed:
            return self._unobserved_verdict(verdict, value)
        if value.is_decision:
            verdict = self._decision_verdict(verdict, value)
            matches_model = reference is not None and not differ(tensor, reference, unit_of(tensor.dtype))
            is_accepted = (verdict.sound or verdict.verdict == "suspicious") and not self._is_isolated
            if is_accepted and self._others.add(name, value.exported_name, tensor, matches_model=matches_model):
                self._decisions.record_unaffected(value.exported_name)
                if verdict.flips is not None:
                    self._others.add_flip(name, name)
        if verdict.verdict in ("wrong", "unstable"):
            self._wrong.add(name)
        return verdict

    def _exact(self, name: str) -> Float64Value | None:
        """Return a value in float64, with the choices of the run in near-ties of a nearest `Resize`."""
        return self._chosen[name] if name in self._chosen else self.float64.get(name)

    def _with_near_ties(self, value: "_JudgedValue") -> "_JudgedValue":
        """Return a value with the reference for its choices in near-ties, and keep what float64 has for them."""
        self._chosen = {}
        node = self._exported.producer.get(value.exported_name)
        if self._rerun is None or node is None or not chooses_nearest(node):
            return value
        exact, given = self.float64.get(value.exported_name), self._read_by(value)
        source = given.get(node.inputs[0])
        if exact is None or source is None:
            return value

        def resized(ties: Ties) -> torch.Tensor | None:
            found = None if self._rerun is None else self._rerun(given.get, ties=ties).get(value.exported_name)
            return None if found is None else found.value

        chosen, reference = with_near_ties(exact, value.tensor, value.reference, source.shape, resized)
        self._chosen = {value.exported_name: chosen}
        return replace(value, reference=reference)

    def _mismatch(self, value: "_JudgedValue") -> RoundingVerdict | None:
        """Return the verdict on indices that are not those of the numbers that their node selects in any order."""
        axis, node = self._open_axes.get(value.exported_name), value.node
        if axis is None or value.name == node.outputs[0]:
            self._selected |= {} if axis is None else {value.name: value.tensor}
            return None
        numbers, source = self._selected.pop(node.outputs[0], None), value.inputs(node.inputs[0])
        source = self._run.inputs.get(node.inputs[0]) if source is None else source
        if numbers is None or source is None or torch.equal(source.gather(axis, value.tensor), numbers):
            return None
        return RoundingVerdict("wrong", math.inf, math.inf, note="they are not the indices of the selected numbers")

    def _verdict_by_rounded_operands(
        self, verdict: RoundingVerdict | None, value: "_JudgedValue"
    ) -> RoundingVerdict | None:
        """Return the verdict on a value of which a product that may round its operand has computed a part.

        In the whole run, such rounding could hide a fault, so the value becomes a suspect. In isolation, the product
        has the numbers of the reference, computes what float64 does, or does it with an operand rounded as defined.
        """
        is_allowed = verdict is not None and verdict.verdict in ("rounding", "suspicious")
        if verdict is None or not is_allowed or self._lower_precision or not self._rounded.affect(value.name):
            return verdict
        exact = self.float64.get(value.exported_name)
        if not self._is_isolated or exact is None or not self._rounded.own_unit(value.node):
            self.suspects.add(value.name)
            return verdict
        alone = replace(value, reference=None, is_rounded=False)
        shift = 0.0 if value.reference is None else value.reference.double() - exact.value
        known = [exact, replace(exact, value=exact.value + shift, noisy=exact.noisy + shift)]
        known += [*filter(None, [self._with_rounded_operands(value)])]
        found = [self._verdict_by(partial(_always, item), alone) for item in known]
        return min((item for item in found if item is not None), key=lambda item: item.ratio, default=verdict)

    def _with_rounded_operands(self, value: "_JudgedValue") -> Float64Value | None:
        """Return what float64 computes if a node rounds its operands as defined; None if these are not known."""
        given = self._read_by(value)
        for name, rounds in self._rounded.read_by(value.node):
            operand = given.get(name)
            if operand is None:
                return None
            given[name] = rounds(operand)
        return None if self._rerun is None else self._rerun(given.get).get(value.exported_name)

    def _read_by(self, value: "_JudgedValue") -> dict[str, torch.Tensor | None]:
        """Return what a node has read, by its names in the exported graph; None for weights."""
        names = {self._run.exported_name(name): name for name in value.node.reads}
        return {name: self._run.inputs.get(own, value.inputs(own)) for name, own in names.items()}

    def _record_unaffected(self, verdict: RoundingVerdict | None, value: "_JudgedValue") -> None:
        if verdict is not None and verdict.sound and not value.is_decision:
            self._decisions.record_unaffected(value.exported_name)

    def _shared_error(self, verdict: RoundingVerdict | None, value: "_JudgedValue") -> RoundingVerdict | None:
        """Return the verdict on a node that is wrong by itself and whose reference has the same error; else None.

        In the whole run, the value is only recorded as a suspect.
        """
        if (mismatch := self._mismatch(value)) is not None:
            return mismatch
        shared = self._far_from_float64(value) if verdict is None or verdict.sound else None
        reads_right = self._off.isdisjoint(value.node.reads)
        if shared is not None and reads_right:
            self.suspects.add(value.name)
        if shared is not None or not reads_right:
            self._off.add(value.name)
        return shared if self._is_isolated else None

    def _far_from_float64(self, value: "_JudgedValue") -> RoundingVerdict | None:
        """Return the verdict on a value that agrees with the model's although both are far from float64; else None."""
        exact = self._exact(value.exported_name)
        if value.reference is None or exact is None or not shares_error(value.tensor, value.reference, exact):
            return None
        if exact.value.shape == value.tensor.shape:  # the lowest number of the dtype masks as well as -inf
            masked = replace(exact, value=replace_masks(exact.value, value.tensor))
            if not shares_error(value.tensor, value.reference, masked):
                return None
        if self._hidden_in(value.exported_name):  # in fused nodes and folded constants: rounding may have decided them
            return None
        alone = replace(value, reference=None)
        verdict = self._verdict_by(self._exact, alone)
        if verdict is not None and value.is_decision:
            verdict = self._decision_verdict(verdict, alone)
        if verdict is None or verdict.verdict != "wrong" or verdict.ratio <= UNRELIABLE:
            return None
        return replace(verdict, note=BOTH_WRONG)

    def _verdict_by_other_decisions(
        self, verdict: RoundingVerdict | None, value: "_JudgedValue", *, observed: bool
    ) -> tuple[RoundingVerdict | None, "_JudgedValue"]:
        """Return the verdict by what float64 computes from the decisions that may have affected a value.

        These are those of the run, as far as they are known; noise changes the other ones. The value is returned with
        what it was compared with as its reference.
        """
        others_unknown = not observed or self._decisions.may_affect(value.exported_name)
        if self._others.values is not None and self._others.affect(value.name):
            exact = self._others.values.get(value.exported_name)
            # In the model's dtype, because a mask is the lowest number of its dtype.
            dtype = value.tensor.dtype if value.reference is None else value.reference.dtype
            expected = None if exact is None else exact.value.to(dtype)
            forced = replace(value, reference=expected)
            other = self._verdict_by(self._others.values.get, forced)
            if other is not None and value.is_decision:
                other = self._decision_verdict(other, forced, observed=observed)
            if other is not None and (other.sound or not others_unknown):
                return self._with_decided_part(other, value, forced), forced
        if verdict is not None and (verdict.sound or not others_unknown):
            return verdict, value
        changed = self._verdict_by(self.float64.get_with_changed_decisions, value)
        return verdict if changed is None else changed, value

    def _with_decided_part(
        self, verdict: RoundingVerdict, value: "_JudgedValue", forced: "_JudgedValue"
    ) -> RoundingVerdict:
        """Return the verdict with the part of the difference from the model that is due to other decisions before."""
        flips, expected, reference = self._others.flips(value.name), forced.reference, value.reference
        if not flips or expected is None or reference is None:
            return verdict
        if expected.shape != reference.shape:
            return replace(verdict, decided=math.inf, follows=tuple(flips))
        differs = torch.ne(expected, reference)  # infinite masks have no difference
        distance = (expected.double() - reference.double())[differs].abs().nan_to_num(nan=math.inf, posinf=math.inf)
        return replace(verdict, decided=float(distance.max()) if distance.numel() else 0.0, follows=tuple(flips))

    def _verdict_by_hidden_decisions(
        self, verdict: RoundingVerdict | None, value: "_JudgedValue"
    ) -> RoundingVerdict | None:
        """Return the verdict on a value of a fused node by the decisions that the node keeps to itself.

        The value shows them: each near-tie is decided so that what float64 computes from it is nearest to the value.
        """
        if (verdict is not None and verdict.sound) or not self._wrong.isdisjoint(value.node.reads):
            return verdict
        for name in self._hidden_in(value.exported_name):
            found = self._verdict_by_hidden_decision(name, value)
            if found is not None:
                return found
        return verdict

    def _hidden_in(self, name: str) -> tuple[str, ...]:
        """Return the decisions that a value of the exported graph is computed from within a node of the run."""
        return self._compared.hidden_in(self._exported.cone([name], self._run_names))

    def _verdict_by_hidden_decision(self, name: str, value: "_JudgedValue") -> RoundingVerdict | None:
        """Return the verdict on a value by a decision as it shows it; None if this does not explain the value."""
        source = self._others.values or self.float64
        decided, decision = source.get(value.exported_name), source.get(name)
        tie = None if decision is None else self._compared.near_tie(name, decision.value, self._compared_numbers)
        flipped = None if tie is None else self._with_decision(name, tie.flipped, value)
        if decided is None or tie is None or flipped is None:
            return None
        own = tie.shown_by(value.tensor, decided.value, flipped.value)
        chosen = None if own is None else torch.where(own, tie.other, tie.decision)
        exact = None if chosen is None else self._with_decision(name, chosen, value)
        if own is None or chosen is None or exact is None:
            return None
        dtype = value.tensor.dtype if value.reference is None else value.reference.dtype
        forced = replace(value, reference=exact.value.to(dtype))
        verdict = self._verdict_by(lambda _: exact, forced)
        if verdict is None or not verdict.sound:
            return None
        if not self._is_isolated:  # there, nodes read what the model decides
            self._others.add_hidden(value.name, name, chosen)
        models = None if value.reference is None else tie.shown_by(value.reference, decided.value, flipped.value)
        differs = own if models is None else own ^ models
        if not bool(differs.any()):  # float64 alone decides otherwise
            return verdict
        if not self._is_isolated:
            self._others.add_flip(value.name, name)
        verdict = self._with_decided_part(verdict, value, forced)
        return replace(verdict, verdict="decision", flips=flips_of(tie.margins, differs))

    def _with_decision(self, name: str, decision: torch.Tensor, value: "_JudgedValue") -> Float64Value | None:
        """Return what float64 computes for a value from a further decision of the run."""
        values = self._others.with_decision(name, decision)
        return None if values is None else values.get(value.exported_name)

    def _unobserved_verdict(self, verdict: RoundingVerdict, value: "_JudgedValue") -> RoundingVerdict:
        """Return the verdict on an output of another run, whose decisions are not known.

        NaN and infinity are no near-ties.
        """
        judge = partial(self._decision_verdict, observed=False) if value.is_decision else self._with_ties
        verdict = judge(verdict, value)
        may_be_decided = value.is_decision or math.isfinite(verdict.ratio)
        if verdict.verdict != "wrong" or not may_be_decided or not self._others.affect(value.name):
            return verdict
        note = "the run without instrumentation may have made other decisions in near-ties"
        return replace(verdict, verdict="suspicious", note=note)

    def _decision_verdict(
        self, verdict: RoundingVerdict, value: "_JudgedValue", *, observed: bool = True
    ) -> RoundingVerdict:
        """Return the verdict on a decision, with its margin if it differs from the model's.

        Rounding decides it if it is the right one for what the node has read, and this is off by no more than rounding.
        What the node has read in a run without instrumentation is not known.
        """
        verdict = self._with_ties(verdict, value)
        if verdict.flips is not None:
            return self._with_margin(verdict, value)
        if verdict.sound or verdict.verdict == "unstable" or not self._reads_right_numbers(value):
            return verdict
        count = value.tensor.numel()
        if value.reference is not None:
            count = int(differing(value.tensor, value.reference, unit_of(value.tensor.dtype)).sum())
        if not count:  # large numbers, which have no fraction to round
            return verdict
        flips = Flips(count, value.tensor.numel())
        decision = self._with_margin(replace(verdict, verdict="decision", note="", flips=flips), value)
        own = self._verdict_by_inputs(value) if observed else None
        if own is not None and own.sound:
            return decision
        # What a fused node compares is not known, only what it reads.
        may_round = own is None or len(self._computes(value.node)) > 1
        is_near = decision.verdict == "decision" and decision.flips is not None and decision.flips.margin is not None
        return decision if may_round and is_near else verdict

    def _reads_right_numbers(self, value: "_JudgedValue") -> bool:
        """Return whether what a decision was computed from is off by no more than rounding, as far as it is known."""
        return self._wrong.isdisjoint((*value.node.reads, *self._compared.names_in_run(value.exported_name)))

    def _with_margin(self, verdict: RoundingVerdict, value: "_JudgedValue") -> RoundingVerdict:
        """Return the verdict on decisions that differ, by the largest of their margins; another order has none."""
        if verdict.flips is not None and verdict.flips.is_order:
            return verdict
        actual, expected, found = value.tensor, value.reference, None
        if expected is not None:
            found = self._compared.margins(value.exported_name, actual, expected, self._compared_numbers)
        if expected is None or found is None:
            return replace(verdict, ratio=1.0)
        flips = flips_of(found, differing(actual, expected, unit_of(actual.dtype)))
        ratio = flips.ratio or 0.0
        judged: Verdict = "decision" if ratio <= SUSPICIOUS else "suspicious" if ratio <= WRONG else "wrong"
        if verdict.note:  # the run's numbers are equal
            judged = "decision"
        return replace(verdict, verdict=judged, ratio=ratio, flips=flips)

    def _compared_numbers(self, name: str, reference: torch.Tensor | None) -> Compared | None:
        """Return a value of the exported graph in float64 and its rounding level; None if they are not known."""
        source = self.float64
        run_name = self._compared.name_in_run(name)
        if self._others.values is not None and run_name is not None and self._others.affect(run_name):
            source = self._others.values
        exact = source.get(name)
        node = self._exported.producer.get(name)
        if exact is None or node is None:
            known = self._run.inputs.get(name)
            if known is None or not known.is_floating_point():
                return None
            return Compared(known.double(), known.double().abs() * unit_of(known.dtype))
        unit = exact.unit if run_name is None else self._units.get(run_name) or exact.unit
        if reference is None or reference.shape != exact.value.shape:
            reference = exact.value.to(getattr(torch, self._exported.values[name].dtype or "", torch.float32))
        level = rounding_level(
            reference,
            exact if run_name is None else replace(exact, unit=self._model_units.get(run_name) or exact.unit),
            unit=unit,
            length=self._longest_sum_of([node], reduction_length),
            sequential=self._longest_sum_of([node], running_length),
        )
        return Compared(exact.value, level.scale * level.largest)

    def _verdict_by_inputs(self, value: "_JudgedValue") -> RoundingVerdict | None:
        """Return the verdict on a decision by what float64 computes from what the node has read; None if not known."""
        reads = value.node.reads
        if self._node_values is None:
            return None
        read = {name: value.inputs(name) for name in reads if name not in self._run.graph.constants}
        known = {self._run.exported_name(name): item for name, item in read.items() if item is not None}
        if not known or len(known) < len(read):
            return None
        exact = self._node_values(known.get).get(value.exported_name)
        if exact is None:
            return None
        value = replace(value, reference=exact.value, spread=None)
        verdict = self._verdict_by(lambda _: exact, value)
        if verdict is None or verdict.sound:
            return verdict
        is_rounded = self._decides_rounded(value, exact.value, known)
        return replace(verdict, verdict="decision") if is_rounded else self._with_ties(verdict, value)

    def _decides_rounded(self, value: "_JudgedValue", exact: torch.Tensor, known: Mapping[str, torch.Tensor]) -> bool:
        """Return whether a decision is right for numbers that are rounded to those that its node is known to have read.

        A kernel may compute in float32 what a value has in half precision, and what reads it gets the former.
        """

        def rounded(name: str, _: torch.Tensor | None) -> Compared | None:
            read = known.get(name)
            if read is None or unit_of(read.dtype) <= unit_of(torch.float32):
                return None
            return Compared(read.double(), read.double().abs() * unit_of(read.dtype))

        expected = exact.to(value.tensor.dtype)
        found = self._compared.margins(value.exported_name, value.tensor, expected, rounded)
        differs = differing(value.tensor, expected, unit_of(expected.dtype))
        ratio = None if found is None or not bool(differs.any()) else flips_of(found, differs).ratio
        return ratio is not None and ratio <= 1.0

    def _with_ties(self, verdict: RoundingVerdict, value: "_JudgedValue") -> RoundingVerdict:
        producers, read = self._run.graph.producer, {name: name for name in value.node.reads}
        selecting = selecting_node(value.name, value.node, producers)
        if selecting is None:  # a backend's own operator, for example
            producers, read = self._exported.producer, {self._run.exported_name(name): name for name in read}
            if value.exported_name in producers:
                selecting = selecting_node(value.exported_name, producers[value.exported_name], producers)
        source = "" if selecting is None else selecting.inputs[0]
        node_input = value.inputs(read.get(source, source))
        any_order = value.exported_name in self._any_order or value.exported_name in self._open_axes
        return with_ties(verdict, selecting, node_input, value.tensor, value.reference, any_order=any_order)

    def release(self, name: str) -> None:
        """Declare that a value will not be judged again.

        Args:
            name: its name in the exported graph.
        """
        hidden = self._hidden_in(name) if name in self._run_names else ()
        self._hidden_uses.subtract(hidden)
        names = (*(item for item in hidden if not self._hidden_uses[item]), name)
        for unused in chain.from_iterable(map(self._compared.release, names)):
            self.float64.release(unused)
            self._others.release(unused)

    def compiled_verdict(
        self,
        name: str,
        node: Node,
        reference: torch.Tensor,
        tensor: torch.Tensor,
        spread: torch.Tensor | None = None,
    ) -> RoundingVerdict | None:
        """Return the verdict on a value that only the compiled graph has (see `verdict`).

        Its float64 value takes two more runs of the model, so it is for values that exceed the tolerance.
        """
        if self._compiled is None or name != self._run.exported_name(name) or name in self._exported.values:
            return None
        float64 = self._compiled()
        value = _JudgedValue(name, name, node, reference, tensor, spread, is_decision=float64.decides(name, tensor))
        verdict = self._verdict_by(float64.get, value)
        if float64.changed_decisions and not (verdict is not None and verdict.sound):
            verdict = self._verdict_by(float64.get_with_changed_decisions, value)
        return verdict

    def _verdict_by(self, get: Callable[[str], Float64Value | None], value: "_JudgedValue") -> RoundingVerdict | None:
        """Return the verdict on a value (see `verdict`) by the float64 value that `get` returns."""
        reference, tensor, spread = value.reference, value.tensor, value.spread
        steady = not largest_distance(spread)
        if steady and reference is not None and tensor.dtype == reference.dtype and are_equal(tensor, reference):
            return identical_verdict(spread)  # whatever the float64 value is
        exact = get(value.exported_name)
        if exact is None or exact.value.is_floating_point() != tensor.is_floating_point():
            return None
        if reference is None:
            reference = exact.value.to(tensor.dtype)
        axis = self._open_axes.get(value.exported_name)
        if axis is not None and (value.reference is None or not value.is_decision):
            tensor, reference = (item.sort(axis).values for item in (tensor, reference))
            exact = replace(exact, value=exact.value.sort(axis).values, noisy=exact.noisy.sort(axis).values)
        if steady and (value.reference is None or axis is not None) and are_equal(tensor, reference):
            return identical_verdict(spread)
        if not tensor.shape == reference.shape == exact.value.shape:
            return None
        if self._lower_precision:
            tensor = replace_masks(tensor, reference)
        # The noise in float64 has the units of the model's dtypes on the way to the value.
        exact = replace(exact, unit=self._model_units.get(value.name) or exact.unit)
        units = self._units if value.is_rounded else self._model_units
        unit = units.get(value.name) or exact.unit
        length, sequential = (self._longest_sum(value.node, count) for count in (reduction_length, running_length))
        if unit == self._rounded.own_unit(value.node):  # the sums themselves are finer
            length = sequential = 1
        judge = partial(
            rounding_verdict,
            tensor,
            reference,
            exact,
            unit=unit,
            reference_unit=self._reference_units.get(value.name),
            length=length,
            spread=spread,
            is_step=value.is_decision and self._compared.measures(value.exported_name),
        )
        verdict = judge(sequential=sequential)
        is_sound = verdict is not None and verdict.sound
        if is_sound or unit > unit_of(torch.float32) or not self._sums_repeated_numbers(value):
            return verdict
        return judge(sequential=max(sequential, int((length * _SYSTEMATIC) ** 2)))

    def _sums_repeated_numbers(self, value: "_JudgedValue") -> bool:
        """Return whether a node sums few different numbers, whose rounding errors have one sign and add up."""
        given = self._read_by(value)
        sums = [item for item in self._computes(value.node) if reduction_length(item, self._exported, self._shapes) > 1]
        known = [self._is_repetitive(name, given) for item in sums for name in item.inputs[:2] if name]
        return any(known) and all(item is not False for item in known)

    def _is_repetitive(self, name: str, given: Mapping[str, torch.Tensor | None]) -> bool | None:
        """Return whether a value has few different numbers; None if it is not known, or has no floating-point ones."""
        exact, numbers = self.float64.get(name), given.get(name)
        if numbers is None:
            numbers = self._constant(name) if exact is None else exact.value
        if numbers is None or not numbers.is_floating_point():
            return None
        # An odd step does not divide the length of most rows, whose columns may differ.
        sample = numbers.reshape(-1)[:: numbers.numel() // _SAMPLE | 1]
        return len(torch.unique(sample)) * _REPEATED <= max(len(sample), _REPEATED)

    def sums(self, node: Node) -> bool:
        """Return whether a node sums numbers."""
        return max(self._longest_sum(node, count) for count in (reduction_length, running_length)) > 1

    def _longest_sum(self, node: Node, count: Callable[[Node, Graph, ObservedShapes], int]) -> int:
        """Return the length of the longest sum that a node computes."""
        return self._longest_sum_of(self._computes(node), count)

    def _longest_sum_of(self, nodes: Iterable[Node], count: Callable[[Node, Graph, ObservedShapes], int]) -> int:
        """Return the length of the longest sum of some exported nodes, and of what an operation of the model is of."""
        pending, found = [*nodes], dict[str, int]()
        while pending:
            node = pending.pop()
            if node.name not in found:
                found[node.name] = count(node, self._exported, self._shapes)
                inner = (self._exported.producer.get(name) for name in node.reads if self.float64.is_inner(name))
                pending += [item for item in inner if item is not None]
        return max(found.values(), default=1)


@dataclass(frozen=True)
class _JudgedValue:
    """A value to judge; see `Float64Checker.verdict`."""

    name: str
    exported_name: str
    node: Node
    reference: torch.Tensor | None
    tensor: torch.Tensor
    spread: torch.Tensor | None = None
    inputs: TensorLookup = lambda _: None
    is_rounded: bool = True  # whether its node may round its operands
    is_decision: bool = False  # see `Decisions`


def _always(exact: Float64Value, _: str) -> Float64Value:
    return exact


class _CoarsestUnits:
    """The coarsest unit among each value and the values that it is computed from.

    Args:
        graph: the graph that runs.
        units: the units of its inputs and weights.
        replaced: the names of the values whose consumers read the reference, which has only the value's own unit.
        minimum: returns the least unit of what a node computes.
    """

    def __init__(
        self,
        graph: Graph,
        units: Mapping[str, float],
        replaced: Collection[str],
        minimum: Callable[[Node], float] = lambda _: 0.0,
    ) -> None:
        self._graph, self._replaced, self._minimum = graph, replaced, minimum
        self._own, self._coarsest = dict(units), dict(units)

    def add(self, node: Node, name: str, unit: float) -> None:
        """Add a value that a node computes, after the values that the node reads.

        Args:
            node: the node.
            name: the name of the value.
            unit: the unit of its dtype.
        """
        self._own[name] = unit
        inherited = [
            self._own.get(item, 0.0) if item in self._replaced else self._of_ancestors(item) for item in node.reads
        ]
        self._coarsest[name] = max(unit, self._minimum(node), *inherited, 0.0)

    def get(self, name: str) -> float:
        """Return the coarsest unit of a value that was added; 0 if it has none."""
        return self._coarsest.get(name, 0.0)

    def _of_ancestors(self, name: str) -> float:
        """Return the coarsest unit of a value, which the run may not show; a sequence has that of its elements."""
        if name not in self._coarsest:
            node = self._graph.producer.get(name)
            self._coarsest[name] = 0.0  # of an omitted input
            if node is not None:
                self._coarsest[name] = max(self._minimum(node), *map(self._of_ancestors, node.reads), 0.0)
        return self._coarsest[name]


def with_verdict(row: Row, verdict: RoundingVerdict | None) -> Row:
    """Return a row with its verdict by float64, which decides the status; the row unchanged if the verdict is None.

    Another shape is right if the decisions of the run lead to it.
    """
    if verdict is None or (row.status == "shape or dtype differs" and not (verdict.sound and verdict.follows)):
        return row
    wrong = verdict.verdict in ("wrong", "unstable")
    return replace(row, float64=verdict, status="different" if wrong else "same", reason="")
