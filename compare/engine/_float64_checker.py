"""Judge the values of one run by float64."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch

from filch.export import Graph, Node

from ..float64 import (
    Float64Values,
    RoundingVerdict,
    identical_verdict,
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
    ) -> None:
        self.float64 = float64
        self._run = run
        self._computes = computes
        self._exported = exported
        self._lower_precision = lower_precision
        self._replaced = replaced
        graph = run.graph
        dtypes = {name: getattr(torch, graph.values[name].dtype or "", None) for name in graph.constants}
        dtypes |= {name: tensor.dtype for name, tensor in run.inputs.items()}
        self._own_units = {
            name: self._unit(name, dtype) for name, dtype in dtypes.items() if isinstance(dtype, torch.dtype)
        }
        if run.lowered is not None:
            self._own_units |= {
                name: max(self._own_units.get(name, 0.0), unit) for name, unit in run.lowered.units.items()
            }
        self._coarsest_units = dict(self._own_units)

    def _unit(self, name: str, dtype: torch.dtype) -> float:
        return unit_of(dtype) if self._lower_precision else self.float64.unit(self._run.exported_name(name))

    def record_output_dtype(self, node: Node, name: str, dtype: torch.dtype) -> None:
        """Record the dtype of a node's output; call it for each value in the order of execution."""
        self._own_units[name] = self._unit(name, dtype)
        inherited = [
            self._own_units.get(item, 0.0) if item in self._replaced else self._coarsest_unit(item)
            for item in node.reads
        ]
        input_eps = self._run.compiled.matmul_input_eps
        product_unit = input_eps if input_eps and any(map(is_product, self._computes(node))) else 0.0
        self._coarsest_units[name] = max(self._own_units[name], product_unit, *inherited, 0.0)

    def _coarsest_unit(self, name: str) -> float:
        """Return the coarsest unit among a value and its ancestors; a sequence has that of its elements."""
        if name not in self._coarsest_units:
            node = self._run.graph.producer.get(name)
            self._coarsest_units[name] = 0.0  # of an omitted input
            self._coarsest_units[name] = (
                max((self._coarsest_unit(item) for item in node.reads), default=0.0) if node else 0.0
            )
        return self._coarsest_units[name]

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
        steady = not largest_distance(spread)
        if steady and reference is not None and tensor.dtype == reference.dtype and torch.equal(tensor, reference):
            return identical_verdict(spread)  # whatever the float64 value is
        exact = self.float64.get(self._run.exported_name(name))
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
        unit = self._coarsest_units.get(name) or exact.unit
        length, sequential = (self._longest_sum(node, count) for count in (reduction_length, running_length))
        return rounding_verdict(
            tensor, reference, exact, unit=unit, length=length, sequential=sequential, spread=spread
        )

    def _longest_sum(self, node: Node, count: Callable[[Node, Graph], int]) -> int:
        """Return the length of the longest sum that a node computes."""
        return max((count(item, self._exported) for item in self._computes(node)), default=1)


def with_verdict(row: Row, verdict: RoundingVerdict | None) -> Row:
    """Return a row with its verdict by float64, which decides the status; the row unchanged if the verdict is None."""
    if verdict is None or row.status == "shape or dtype differs":
        return row
    wrong = verdict.verdict in ("wrong", "unstable")
    return replace(row, float64=verdict, status="different" if wrong else "same")
