"""Judge the values of one run by float64."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch

from filch.export import Graph, Node

from ..float64 import (
    Decisions,
    Float64Value,
    Float64Values,
    RoundingVerdict,
    identical_verdict,
    is_decision,
    is_product,
    largest_distance,
    reduction_length,
    rounding_verdict,
    running_length,
    unit_of,
)
from ..metrics._metrics import replace_masks
from ..results._rows import Row
from ._run import Run


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
    """

    def __init__(
        self,
        float64: Float64Values,
        run: Run,
        computes: Callable[[Node], Sequence[Node]],
        exported: Graph,
        *,
        lower_precision: bool = False,
        replaced: Collection[str] = frozenset(),
        compiled: Callable[[], Float64Values] | None = None,
    ) -> None:
        self.float64 = float64
        self._compiled = compiled
        self._decisions = Decisions(float64)
        self._run = run
        self._computes = computes
        self._exported = exported
        self._lower_precision = lower_precision
        graph = run.graph
        dtypes = {name: getattr(torch, graph.values[name].dtype or "", None) for name in graph.constants}
        dtypes |= {name: tensor.dtype for name, tensor in run.inputs.items()}
        model_units = {name: self._model_unit(name) for name in dtypes}
        own_units = {
            name: unit_of(dtype) if lower_precision else model_units[name]
            for name, dtype in dtypes.items()
            if isinstance(dtype, torch.dtype)
        }
        if run.lowered is not None:
            own_units |= {name: max(own_units.get(name, 0.0), unit) for name, unit in run.lowered.units.items()}
        self._units = _CoarsestUnits(graph, own_units, replaced)
        self._model_units = _CoarsestUnits(graph, model_units, replaced)

    def _model_unit(self, name: str) -> float:
        return self.float64.unit(self._run.exported_name(name))

    def record_output_dtype(self, node: Node, name: str, dtype: torch.dtype) -> None:
        """Record the dtype of a node's output; call it for each value in the order of execution."""
        model_unit = self._model_unit(name)
        input_eps = self._run.compiled.matmul_input_eps
        product_unit = input_eps if input_eps and any(map(is_product, self._computes(node))) else 0.0
        self._units.add(node, name, unit_of(dtype) if self._lower_precision else model_unit, product_unit)
        self._model_units.add(node, name, model_unit)

    def verdict(
        self,
        name: str,
        node: Node,
        reference: torch.Tensor | None,
        tensor: torch.Tensor,
        spread: torch.Tensor | None = None,
    ) -> RoundingVerdict | None:
        """Return the verdict on a value; None if there is no float64 value to compare it with.

        Args:
            name: its name in the run, as passed to `record_output_dtype`.
            node: the node that computes it.
            reference: the expected tensor; None is the float64 value, rounded.
            tensor: the actual tensor.
            spread: the largest difference of each element between repeated runs.
        """
        exported_name = self._run.exported_name(name)
        values = name, node, reference, tensor, spread
        verdict = self._verdict_by(self.float64.get, *values)
        if verdict is not None and (verdict.verdict == "same" or (verdict.sound and not is_decision(tensor))):
            self._decisions.record_unaffected(exported_name)
        elif verdict is None or self._decisions.may_affect(exported_name):
            verdict = self._verdict_by(self.float64.get_with_changed_decisions, *values)
        return verdict

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
        float64, values = self._compiled(), (name, node, reference, tensor, spread)
        verdict = self._verdict_by(float64.get, *values)
        if float64.changed_decisions and not (verdict is not None and verdict.sound):
            verdict = self._verdict_by(float64.get_with_changed_decisions, *values)
        return verdict

    def _verdict_by(  # noqa: PLR0917  called in two places
        self,
        get: Callable[[str], Float64Value | None],
        name: str,
        node: Node,
        reference: torch.Tensor | None,
        tensor: torch.Tensor,
        spread: torch.Tensor | None,
    ) -> RoundingVerdict | None:
        """Return the verdict on a value (see `verdict`) by the float64 value that `get` returns."""
        steady = not largest_distance(spread)
        if steady and reference is not None and tensor.dtype == reference.dtype and torch.equal(tensor, reference):
            return identical_verdict(spread)  # whatever the float64 value is
        exact = get(self._run.exported_name(name))
        if exact is None or exact.value.is_floating_point() != tensor.is_floating_point():
            return None
        if reference is None:
            reference = exact.value.to(tensor.dtype)
            if steady and torch.equal(tensor, reference):
                return identical_verdict(spread)
        if not tensor.shape == reference.shape == exact.value.shape:
            return None
        if self._lower_precision:
            tensor = replace_masks(reference, tensor)
        # The noise in float64 has the units of the model's dtypes on the way to the value.
        exact = replace(exact, unit=self._model_units.get(name) or exact.unit)
        unit = self._units.get(name) or exact.unit
        length, sequential = (self._longest_sum(node, count) for count in (reduction_length, running_length))
        return rounding_verdict(
            tensor, reference, exact, unit=unit, length=length, sequential=sequential, spread=spread
        )

    def sums(self, node: Node) -> bool:
        """Return whether a node sums numbers."""
        return max(self._longest_sum(node, count) for count in (reduction_length, running_length)) > 1

    def _longest_sum(self, node: Node, count: Callable[[Node, Graph], int]) -> int:
        """Return the length of the longest sum that a node computes."""
        return max((count(item, self._exported) for item in self._computes(node)), default=1)


class _CoarsestUnits:
    """The coarsest unit among each value and the values that it is computed from.

    Args:
        graph: the graph that runs.
        units: the units of its inputs and weights.
        replaced: the names of the values whose consumers read the reference, which has only the value's own unit.
    """

    def __init__(self, graph: Graph, units: Mapping[str, float], replaced: Collection[str]) -> None:
        self._graph, self._replaced = graph, replaced
        self._own, self._coarsest = dict(units), dict(units)

    def add(self, node: Node, name: str, unit: float, minimum: float = 0.0) -> None:
        """Add a value that a node computes, after the values that the node reads.

        Args:
            node: the node.
            name: the name of the value.
            unit: the unit of its dtype.
            minimum: the least unit of the value itself.
        """
        self._own[name] = unit
        inherited = [
            self._own.get(item, 0.0) if item in self._replaced else self._of_ancestors(item) for item in node.reads
        ]
        self._coarsest[name] = max(unit, minimum, *inherited, 0.0)

    def get(self, name: str) -> float:
        """Return the coarsest unit of a value that was added; 0 if it has none."""
        return self._coarsest.get(name, 0.0)

    def _of_ancestors(self, name: str) -> float:
        """Return the coarsest unit of a value; a sequence has that of its elements."""
        if name not in self._coarsest:
            node = self._graph.producer.get(name)
            self._coarsest[name] = 0.0  # of an omitted input
            if node is not None:
                self._coarsest[name] = max(map(self._of_ancestors, node.reads), default=0.0)
        return self._coarsest[name]


def with_verdict(row: Row, verdict: RoundingVerdict | None) -> Row:
    """Return a row with its verdict by float64, which decides the status; the row unchanged if the verdict is None."""
    if verdict is None or row.status == "shape or dtype differs":
        return row
    wrong = verdict.verdict in ("wrong", "unstable")
    return replace(row, float64=verdict, status="different" if wrong else "same")
