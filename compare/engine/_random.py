"""Random numbers and unwritten memory in a run: what is made of them can't be held against another run's.

The reference's random numbers are put in the place of those that a run draws, where a backend can do that: what reads
them is then judged like any other value. Of the random numbers themselves, only the distribution is.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Literal

import torch

from filch.export import Node, Unpredictable

from ..results._rows import Row
from ._run import Run

_FEW = 100  # numbers say nothing of a distribution
_MOST = 2**16
_CHANCE = 1e-9  # that numbers of one distribution are taken for those of two
UNWRITTEN = "memory that nothing has written to: no two runs have to agree on it"
OTHERS = "computed from other random numbers than the reference, or from none"
INSIDE = "the random numbers that it is computed from are drawn inside of its node, or not at all"
NESTED = "computed from random numbers that are drawn in a graph inside of its node"
Kind = Literal["", "drawn", "nested", "inside", "others", "unwritten"]


class Draws:
    """Knows which values of a run are random, or computed from other random numbers than the reference is.

    Args:
        run: the run.
        unpredictable: what no two runs have to agree on in the exported graph.
        computes: gives the exported nodes that a node of the run computes.
    """

    def __init__(self, run: Run, unpredictable: Unpredictable, computes: Callable[[Node], Sequence[Node]]) -> None:
        self._run, self._unpredictable, self._computes = run, unpredictable, computes
        self._given: set[str] = set()
        self._others: set[str] = set()
        self._kinds: dict[str, Kind] = {}

    @property
    def any_drawn(self) -> bool:
        """Whether the run draws random numbers that something else may read."""
        return any(self._run.exported_name(name) in self._unpredictable.replaced for name in self._run.graph.producer)

    def given(self, name: str, should: Callable[[str], torch.Tensor | None]) -> torch.Tensor | None:
        """What a value is replaced by: the reference, if it is random; None leaves it.

        Args:
            name: of a value of the run.
            should: what the exported graph's value of a name should be.
        """
        known = self._run.exported_name(name)
        tensor = should(known) if known in self._unpredictable.replaced else None
        if tensor is None:
            return None
        self._given.add(name)
        value = self._run.graph.values.get(name)
        dtype = getattr(torch, value.dtype, tensor.dtype) if value is not None and value.dtype else tensor.dtype
        return tensor.to(dtype)

    def lost(self, name: str) -> None:
        """Take note that a value could not be replaced, as it is of another shape or type."""
        self._others.add(name)

    def kind(self, name: str, node: Node) -> Kind:
        """What a value is, by its name in the run; asked for the values that `node` reads first.

        Returns:
            `drawn` (random numbers), `nested` (computed from such in a graph inside of its node), `others` (computed
            from other random numbers than the reference), `inside` (from such that its own node draws), `unwritten`,
            or `""`.
        """
        if name not in self._kinds:
            self._kinds[name] = self._kind(name, node)
            is_others = self._kinds[name] in ("drawn", "nested") and name not in self._given
            if is_others or self._kinds[name] in ("inside", "others"):
                self._others.add(name)
        return self._kinds[name]

    def _kind(self, name: str, node: Node) -> Kind:
        known = self._run.exported_name(name)
        if known in self._unpredictable.drawn:
            return "drawn"
        if known in self._unpredictable.nested:
            return "nested"
        if known in self._unpredictable.unwritten:
            return "unwritten"
        if self._draws_inside(node):
            return "inside"
        return "" if self._others.isdisjoint(node.reads) else "others"

    def _draws_inside(self, node: Node) -> bool:
        """Whether a node draws random numbers that it does not show."""
        made = set(map(self._run.exported_name, node.outputs))
        drawn = self._unpredictable.replaced
        return made.isdisjoint(drawn) and any(
            not drawn.isdisjoint(item.outputs) for item in self._computes(node) if made.isdisjoint(item.outputs)
        )

    def varies(self, name: str) -> bool:
        """Whether another run has another value, by its name in this one."""
        return self._run.exported_name(name) in self._unpredictable.all or name in self._others

    @property
    def unjudged(self) -> Collection[str]:
        """The names of the values that no reference can judge."""
        return {name for name, kind in self._kinds.items() if kind}


def distance_of_distributions(expected: torch.Tensor, actual: torch.Tensor) -> tuple[float, float] | None:
    """How far apart the distributions of two samples are, and how far chance takes them apart at the most.

    It is the statistic of Kolmogorov and Smirnov, the largest difference between the shares of numbers up to any bound;
    its limit is that of Smirnov's approximation (Hodges 1958). The limit is only kept better by numbers of several
    distributions, and by whole ones.

    Returns:
        None if there are too few numbers to tell.
    """
    first, second = _sample(expected), _sample(actual)
    if min(first.numel(), second.numel()) < _FEW:
        return None
    bounds = torch.cat([first, second])
    shares = [torch.searchsorted(item, bounds, right=True).double() / item.numel() for item in (first, second)]
    size = first.numel() * second.numel() / (first.numel() + second.numel())
    return float((shares[0] - shares[1]).abs().max()), math.sqrt(math.log(2 / _CHANCE) / (2 * size))


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1).double()
    return flat[:: max(1, flat.numel() // _MOST)].nan_to_num(nan=math.inf).sort().values


def judged(row: Row, kind: Kind, expected: torch.Tensor | None, actual: torch.Tensor | None) -> Row:
    """The row of a value that no two runs have to agree on: what can be said of it all the same."""
    if actual is not None:
        row = replace(row, dtype=str(actual.dtype).removeprefix("torch."), shape=tuple(actual.shape))
    row = replace(row, status="no value", random=kind in ("drawn", "nested"))
    if not row.random:
        return replace(row, reason={"unwritten": UNWRITTEN, "inside": INSIDE}.get(kind, OTHERS))
    if expected is None or actual is None:
        return replace(row, reason="random numbers, and nothing says how they should be distributed")
    for what, was, found in (("shape", expected.shape, actual.shape), ("dtype", expected.dtype, actual.dtype)):
        if was != found:
            reason = f"the {what} differs: {found} instead of {was}".replace("torch.", "")
            return replace(row, status="shape or dtype differs", reason=reason, evidence="eager")
    distance = distance_of_distributions(expected, actual) if kind == "drawn" else None
    if kind == "nested":
        return replace(row, reason=NESTED)
    if distance is None:
        return replace(row, reason=f"random numbers, too few to compare their distribution (at least {_FEW})")
    same = distance[0] <= distance[1]
    told = f"Kolmogorov-Smirnov distance {distance[0]:.1e}, up to {distance[1]:.1e} by chance"
    reason = f"random numbers of {'the same' if same else 'another'} distribution ({told})"
    return replace(row, status="same" if same else "different", reason=reason, evidence="eager")
