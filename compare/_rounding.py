"""Holds the values of one run against float64."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch

from filch.export import Graph, Node

from ._report import Row
from .truth import CallTruth, Judgement, judge, same, unit_of


class Rounding:
    """Says of each value of a run, one after the other, whether it is off by more than rounding.

    Args:
        truth: what the values are in float64.
        graph: that ran.
        length: how many numbers a node of it sums up at the most.
        products: what products are rounded to, relative, where the backend rounds further than their types do.
        cut: the names of values that the nodes that read them were given as they should be.
        inputs: what the graph was given, by name.
    """

    def __init__(
        self,
        truth: CallTruth,
        graph: Graph,
        length: Callable[[Node], int],
        *,
        products: float = 0.0,
        cut: Collection[str] = frozenset(),
        inputs: Mapping[str, torch.Tensor],
    ) -> None:
        self._truth = truth
        self._length = length
        self._products = products
        self._cut = cut
        noted = {name: getattr(torch, graph.values[name].dtype or "", None) for name in graph.constants}
        types = {**noted, **{name: tensor.dtype for name, tensor in inputs.items()}}
        self._own = {name: unit_of(dtype) for name, dtype in types.items() if isinstance(dtype, torch.dtype)}
        self._units = dict(self._own)

    def saw(self, node: Node, name: str, dtype: torch.dtype) -> None:
        """Take note of what a node makes: the coarsest type on the way to a value says how it is rounded."""
        self._own[name] = unit_of(dtype)
        read = [self._own.get(item, 0.0) if item in self._cut else self._units.get(item, 0.0) for item in node.reads]
        rounded = self._products if self._products and self._length(node) > 1 else 0.0
        self._units[name] = max(self._own[name], rounded, *read)

    def judged(  # noqa: PLR0917  made in one place
        self,
        name: str,
        known: str,
        node: Node,
        reference: torch.Tensor,
        tensor: torch.Tensor,
        spread: torch.Tensor | None = None,
    ) -> Judgement | None:
        """What there is to say of a value; None if its truth is not known.

        Args:
            name: its name, which `saw` was told.
            known: its name in the exported graph.
            node: what made it.
            reference: what it should be.
            tensor: what it is.
            spread: how far each element was from itself in further runs.
        """
        if tensor.dtype == reference.dtype and torch.equal(tensor, reference):  # whatever the truth is
            return same(spread)
        truth = self._truth.get(known)
        if truth is None or not tensor.shape == reference.shape == truth.value.shape:
            return None
        unit = self._units.get(name) or truth.unit
        return judge(tensor, reference, truth, unit=unit, length=self._length(node), spread=spread)

    def done(self, known: str) -> None:
        """Say that a value will not be asked for again."""
        self._truth.done(known)


def with_truth(row: Row, judgement: Judgement | None) -> Row:
    """A row that is judged by how far it is from the truth, where that is known."""
    if judgement is None or row.status == "shape or dtype differs":
        return row
    wrong = judgement.verdict in ("wrong", "unstable")
    return replace(row, truth=judgement, status="different" if wrong else "same")
