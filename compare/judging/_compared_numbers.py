"""Keep the numbers that decisions compare until the decisions are judged.

A decision is an integer or boolean that is computed from floating-point numbers, or a number of a function that jumps
between constants (see `Decisions`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import torch

from filch.export import Graph, Node

from ..common._dtypes import declared_dtype
from ..float64._margins import Compared, Margins, deciding_node, margins_of, nearest_alternative
from ..float64._noise import unit_of
from ..float64._verdict import SUSPICIOUS
from ._run import TensorLookup

Lookup = Callable[[str, torch.Tensor | None], Compared | None]  # by a name and the reference, None if there is none


class ComparedNumbers:
    """The floating-point numbers that the decisions of a graph compare, by the names in the exported graph.

    Args:
        exported: the exported graph.
        run_names: the names in the run of the values that it computes, by their exported names.
        constant: returns a constant of the exported graph by its name; None for any other value.
    """

    def __init__(self, exported: Graph, run_names: Mapping[str, str], constant: TensorLookup) -> None:
        self._run_names, self._constant = run_names, constant
        self._nodes = _deciding_nodes(exported)
        self._operands = compared_values(exported)
        self._readers: dict[str, set[str]] = {}
        for decision, names in self._operands.items():
            for name in names:
                self._readers.setdefault(name, set()).add(decision)
        self._references: dict[str, torch.Tensor] = {}
        # The values that will not be judged again; of those that the run does not compute, none will.
        self._released = {name for name in self._readers if name not in run_names}

    def names_in_run(self, decision: str) -> list[str]:
        """Return the names in the run of what a decision of the exported graph compares, as far as it returns it."""
        names = self._operands.get(decision, ())
        return [self._run_names[name] for name in names if name in self._run_names]

    def measures(self, name: str) -> bool:
        """Return whether the margins of a value of the exported graph may be known."""
        return name in self._nodes

    def add_reference(self, name: str, reference: torch.Tensor | None) -> None:
        """Keep what a value was compared with, if a decision reads it."""
        if reference is not None and self._readers.get(name):
            self._references[name] = reference

    def margins(self, name: str, actual: torch.Tensor, expected: torch.Tensor, lookup: Lookup) -> Margins | None:
        """Return the margins of a decision and their rounding levels (see `margins_of`); None if they are not known.

        Args:
            name: its name in the exported graph.
            actual: the decision.
            expected: what it is compared with.
            lookup: returns the float64 values of what it compares, and their rounding levels.
        """
        if name not in self._operands or expected.shape != actual.shape:
            return None
        return margins_of(self._nodes[name], self._known_operands(name, lookup), actual, expected)

    def near_tie(self, name: str, decision: torch.Tensor, lookup: Lookup) -> "NearTie | None":
        """Return what rounding may make of a decision of float64; None if there is no near-tie.

        Args:
            name: its name in the exported graph.
            decision: what float64 decides.
            lookup: see `margins`.
        """
        node, operands = self._nodes[name], self._known_operands(name, lookup)
        other = nearest_alternative(node, operands, decision)
        found = None if other is None else margins_of(node, operands, other, decision)
        if other is None or found is None:
            return None
        may_flip = found.distance <= SUSPICIOUS * found.level
        return NearTie(decision, other, may_flip, found) if bool(may_flip.any()) else None

    def hidden_in(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Return the decisions of some nodes of the exported graph that the run does not return."""
        names = chain.from_iterable(node.outputs for node in nodes)
        return tuple(name for name in names if name in self._operands and name not in self._run_names)

    def _known_operands(self, name: str, lookup: Lookup) -> dict[str, Compared]:
        """Return the numbers that a decision compares, as far as they are known, by name."""
        operands = {item: self._number(item, lookup) for item in self._operands[name]}
        return {item: number for item, number in operands.items() if number is not None}

    def _number(self, name: str, lookup: Lookup) -> Compared | None:
        """Return a value that a decision compares: a constant of the graph, or what `lookup` returns for it."""
        constant = self._constant(name)
        return lookup(name, self._references.get(name)) if constant is None else Compared.of(constant)

    def release(self, name: str) -> list[str]:
        """Declare that a value will not be judged again, and return the values whose numbers nobody needs now."""
        self._released.add(name)
        operands = self._operands.get(name, ())
        for operand in operands:
            self._readers[operand].discard(name)
        unused = [item for item in (name, *operands) if item in self._released and not self._readers.get(item)]
        for item in unused:
            self._references.pop(item, None)
        return unused


@dataclass(frozen=True)
class NearTie:
    """A decision of float64 that rounding may change.

    Attributes:
        decision: what float64 decides.
        other: the other decision of each element.
        may_flip: where rounding may lead to it.
        margins: see `margins_of`.
    """

    decision: torch.Tensor
    other: torch.Tensor
    may_flip: torch.Tensor
    margins: Margins

    @property
    def flipped(self) -> torch.Tensor:
        """The decision in which all near-ties are decided otherwise."""
        return torch.where(self.may_flip, self.other, self.decision)

    def shown_by(self, value: torch.Tensor, decided: torch.Tensor, flipped: torch.Tensor) -> torch.Tensor | None:
        """Return where a value shows that it was computed from the other decision; None if the shapes are unrelated.

        Args:
            value: the value; its first dimensions are those of the decision.
            decided: what float64 computes from its decision.
            flipped: what float64 computes from `flipped`.
        """
        shape = self.decision.shape
        if not value.shape == decided.shape == flipped.shape or value.shape[: len(shape)] != shape:
            return None
        distances = [(value.double() - item).abs().reshape(*shape, -1).sum(-1) for item in (decided, flipped)]
        return self.may_flip & (distances[1] < distances[0])


def compared_values(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the names of the floating-point values that each decision of a graph compares, by its name."""
    return {
        name: tuple(dict.fromkeys(item for item in node.inputs if item and _is_float(graph, item)))
        for name, node in _deciding_nodes(graph).items()
    }


def _deciding_nodes(graph: Graph) -> dict[str, Node]:
    """Return the node that decides (see `deciding_node`), by the name of the decision.

    Floating-point values are decisions only of operators whose results are constant but for jumps.
    """
    producers = graph.producer
    nodes = ((name, deciding_node(name, node, producers)) for name, node in producers.items())
    found = ((name, node) for name, node in nodes if node is not None)
    return {name: node for name, node in found if node.operator.jumps or not _is_float(graph, name)}


def _is_float(graph: Graph, name: str) -> bool:
    """Return whether a graph declares a value to be floating-point."""
    dtype = declared_dtype(graph, name)
    return dtype is not None and bool(unit_of(dtype))
