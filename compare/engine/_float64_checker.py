"""Holds the values of one run against float64."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch

from filch.export import Graph, Node

from ..float64 import (
    Float64Values,
    RoundingVerdict,
    is_product,
    judge,
    largest_distance,
    reduction_length,
    running_length,
    same,
    unit_of,
)
from ..metrics._metrics import masked_alike
from ..results._rows import Row
from ._run import Run


class Float64Checker:
    """Says of each value of a run, one after the other, whether it is off by more than rounding.

    Values are rounded to the types that they have in the model, not to those of what is judged: a cast too many is a
    fault. Where a lower precision is allowed, the coarsest type on the way to a value says how it is rounded.

    Args:
        truth: what the values are in float64.
        run: what ran.
        computes: gives the nodes of an exported graph that a node of what ran computes.
        exported: that graph.
        lower_precision: whether a lower precision is allowed.
        cut: the names of values that the nodes that read them were given as they should be.
    """

    def __init__(
        self,
        truth: Float64Values,
        run: Run,
        computes: Callable[[Node], Sequence[Node]],
        exported: Graph,
        *,
        lower_precision: bool = False,
        cut: Collection[str] = frozenset(),
    ) -> None:
        self._truth = truth
        self._run = run
        self._computes = computes
        self._exported = exported
        self._lower_precision = lower_precision
        self._cut = cut
        graph = run.graph
        noted = {name: getattr(torch, graph.values[name].dtype or "", None) for name in graph.constants}
        types = {**noted, **{name: tensor.dtype for name, tensor in run.inputs.items()}}
        self._own = {name: self._unit(name, dtype) for name, dtype in types.items() if isinstance(dtype, torch.dtype)}
        if run.lowered is not None:
            self._own |= {name: max(self._own.get(name, 0.0), unit) for name, unit in run.lowered.rounded.items()}
        self._units = dict(self._own)

    def _unit(self, name: str, dtype: torch.dtype) -> float:
        return unit_of(dtype) if self._lower_precision else self._truth.unit(self._run.exported_name(name))

    def record_output_dtype(self, node: Node, name: str, dtype: torch.dtype) -> None:
        """Take note of what a node makes."""
        self._own[name] = self._unit(name, dtype)
        read = [self._own.get(item, 0.0) if item in self._cut else self._behind(item) for item in node.reads]
        products = self._run.made.matmul_input_eps
        rounded = products if products and any(map(is_product, self._computes(node))) else 0.0
        self._units[name] = max(self._own[name], rounded, *read, 0.0)

    def _behind(self, name: str) -> float:
        """The coarsest unit on the way to a value; that of a sequence is of what went into it."""
        if name not in self._units:
            node = self._run.graph.producer.get(name)
            self._units[name] = 0.0  # of one that was left out
            self._units[name] = max((self._behind(item) for item in node.reads), default=0.0) if node else 0.0
        return self._units[name]

    def judged(  # noqa: PLR0917  made in one place
        self,
        name: str,
        known: str,
        node: Node,
        reference: torch.Tensor | None,
        tensor: torch.Tensor,
        spread: torch.Tensor | None = None,
    ) -> RoundingVerdict | None:
        """What there is to say of a value; None if its truth is not known.

        Args:
            name: its name, which `record_output_dtype` was told.
            known: its name in the exported graph.
            node: what made it.
            reference: what it should be; None is the truth, rounded.
            tensor: what it is.
            spread: how far each element was from itself in further runs.
        """
        steady = not largest_distance(spread)
        if steady and reference is not None and tensor.dtype == reference.dtype and torch.equal(tensor, reference):
            return same(spread)  # whatever the truth is
        truth = self._truth.get(known)
        if truth is None or truth.value.is_floating_point() != tensor.is_floating_point():
            return None
        if reference is None:
            reference = truth.value.to(tensor.dtype)
            if steady and torch.equal(tensor, reference):
                return same(spread)
        if not tensor.shape == reference.shape == truth.value.shape:
            return None
        if self._lower_precision:
            tensor = masked_alike(reference, tensor)
        unit = self._units.get(name) or truth.unit
        length, sums = (self._longest(node, count) for count in (reduction_length, running_length))
        return judge(tensor, reference, truth, unit=unit, length=length, sums=sums, spread=spread)

    def _longest(self, node: Node, count: Callable[[Node, Graph], int]) -> int:
        """The longest sum in what a node computes."""
        return max((count(item, self._exported) for item in self._computes(node)), default=1)

    @property
    def problem(self) -> str:
        """Why there is no truth of some values, or `""`."""
        return self._truth.problem

    def release(self, known: str) -> None:
        """Say that a value will not be asked for again."""
        self._truth.release(known)


def with_verdict(row: Row, judgement: RoundingVerdict | None) -> Row:
    """A row that is judged by how far it is from the truth, where that is known."""
    if judgement is None or row.status == "shape or dtype differs":
        return row
    wrong = judgement.verdict in ("wrong", "unstable")
    return replace(row, float64=judgement, status="different" if wrong else "same")
