"""Random numbers and uninitialized memory in a run: no reference can judge the values that depend on them.

If the backend allows it, the random numbers of a run are replaced by those of the reference, so that the values
computed from them are judged like any other. Of the random numbers themselves, the distribution is judged.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Literal

import torch

from filch.export import Node
from filch.export.evaluation._unpredictable import Unpredictable

from ..judging._run import Run
from ..references._resolver import ReferenceResolver
from ..results._rows import JudgedValue

_MIN_SAMPLES = 100  # fewer do not show a distribution
_MAX_SAMPLES = 2**16
_SIGNIFICANCE = 1e-9  # the probability that samples of one distribution are judged different
UNINITIALIZED = "uninitialized memory: its content differs between runs"
OTHERS = "computed from other random numbers than the reference, or from none"
INSIDE = "computed from random numbers that its own node draws, or from none"
NESTED = "computed from random numbers that a subgraph of its node draws"
Kind = Literal["", "drawn", "nested", "inside", "others", "uninitialized"]


class RandomValues:
    """The values of a run that are random, or computed from other random numbers than the reference.

    Args:
        run: the run.
        unpredictable: the values of the exported graph that may differ between runs.
        computes: returns the exported nodes that a node of the run computes.
        drawing: the names of the nodes that draw random numbers which are compared with those of the reference, unlike
            those of `unpredictable`, of which the distribution is.
        known: the names of random values that the references of later values were computed from.
    """

    def __init__(
        self,
        run: Run,
        unpredictable: Unpredictable,
        computes: Callable[[Node], Sequence[Node]],
        drawing: Collection[str] = (),
        known: Collection[str] = (),
    ) -> None:
        self._drawing = drawing
        self._run, self._unpredictable, self._computes = run, unpredictable, computes
        self._replaced = set(known)
        self._different: set[str] = set()
        self._kinds: dict[str, Kind] = {}

    def draws(self, node: Node) -> bool:
        """Whether a node draws random numbers which are compared with those of the reference."""
        return node.name in self._drawing

    @property
    def any_drawn(self) -> bool:
        """Whether the run draws random numbers that can be replaced."""
        return any(self._run.exported_name(name) in self._unpredictable.replaced for name in self._run.graph.producer)

    def replacement(self, name: str, references: ReferenceResolver) -> torch.Tensor | None:
        """Return the reference that replaces a random value, and record the replacement; None leaves it as computed.

        Args:
            name: the name of a value of the run.
            references: the references of the run's values.
        """
        exported_name = self._run.exported_name(name)
        reference = references.get(exported_name) if exported_name in self._unpredictable.replaced else None
        if reference is None:
            return None
        tensor = reference.tensor
        self._replaced.add(name)
        value = self._run.graph.values.get(name)
        dtype = None if value is None else value.dtype
        return tensor if dtype is None else tensor.to(getattr(torch, dtype, tensor.dtype))

    def mark_not_replaced(self, name: str) -> None:
        """Record that a value was not replaced, because its shape or dtype differs from the reference."""
        self._different.add(name)

    def kind(self, name: str, node: Node) -> Kind:
        """Return the kind of a value by its name in the run; call it in the order of execution.

        Returns:
            `drawn` (random numbers), `nested` (computed from random numbers of a subgraph), `others` (computed from
            other random numbers than the reference), `inside` (computed from random numbers that its own node draws),
            `uninitialized` (uninitialized memory), or `""`.
        """
        if name not in self._kinds:
            self._kinds[name] = self._kind(name, node)
            is_different = self._kinds[name] in ("drawn", "nested") and name not in self._replaced
            if is_different or self._kinds[name] in ("inside", "others"):
                self._different.add(name)
        return self._kinds[name]

    def _kind(self, name: str, node: Node) -> Kind:
        """Return the kind of a value of which the kinds of all values before it are known; see `kind`."""
        exported_name = self._run.exported_name(name)
        if exported_name in self._unpredictable.drawn:
            return "drawn"
        if exported_name in self._unpredictable.nested:
            return "nested"
        if exported_name in self._unpredictable.uninitialized:
            return "uninitialized"
        if self._draws_inside(node):
            return "inside"
        return "" if self._different.isdisjoint(node.reads) else "others"

    def _draws_inside(self, node: Node) -> bool:
        """Whether a node computes an exported node that draws random numbers, and returns none of these."""
        outputs = set(map(self._run.exported_name, node.outputs))
        drawn = self._unpredictable.replaced
        inner = [exported for exported in self._computes(node) if outputs.isdisjoint(exported.outputs)]
        return outputs.isdisjoint(drawn) and any(not drawn.isdisjoint(exported.outputs) for exported in inner)

    def varies(self, name: str) -> bool:
        """Whether a value, by its name in the run, may differ in another run."""
        return self._run.exported_name(name) in self._unpredictable.all or name in self._different

    @property
    def unjudged(self) -> Collection[str]:
        """The names of the values that no reference can judge."""
        return {name for name, kind in self._kinds.items() if kind}


def distance_of_distributions(actual: torch.Tensor, expected: torch.Tensor) -> tuple[float, float] | None:
    """Return the two-sample Kolmogorov-Smirnov statistic, and its limit at the significance level.

    The statistic is the largest difference between the empirical distribution functions. The limit is Smirnov's
    approximation (Hodges 1958), which is conservative for discrete distributions and mixtures.

    Returns:
        the statistic and the limit; None if there are too few samples.
    """
    first, second = _sample(actual), _sample(expected)
    if min(first.numel(), second.numel()) < _MIN_SAMPLES:
        return None
    points = torch.cat([first, second])
    cdfs = [torch.searchsorted(sample, points, right=True).double() / sample.numel() for sample in (first, second)]
    size = first.numel() * second.numel() / (first.numel() + second.numel())
    return float((cdfs[0] - cdfs[1]).abs().max()), math.sqrt(math.log(2 / _SIGNIFICANCE) / (2 * size))


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return some numbers of a tensor, at equal distances, sorted; NaN is the largest."""
    flat = tensor.reshape(-1).double()
    return flat[:: max(1, flat.numel() // _MAX_SAMPLES)].nan_to_num(nan=math.inf).sort().values


def random_value(name: str, kind: Kind, actual: torch.Tensor | None, expected: torch.Tensor | None) -> JudgedValue:
    """Judge a random or uninitialized value: its shape, dtype and distribution."""
    judged = partial(JudgedValue.of, name, actual, random=kind in ("drawn", "nested"))
    if kind not in ("drawn", "nested"):
        return judged("no value", {"uninitialized": UNINITIALIZED, "inside": INSIDE}.get(kind, OTHERS))
    if expected is None or actual is None:
        return judged("no value", "random numbers without a reference distribution")
    for field, wanted, computed in (("shape", expected.shape, actual.shape), ("dtype", expected.dtype, actual.dtype)):
        if wanted != computed:
            reason = f"the {field} differs: {computed} instead of {wanted}".replace("torch.", "")
            return judged("shape or dtype differs", reason, evidence="eager")
    if kind == "nested":
        return judged("no value", NESTED)
    distance = distance_of_distributions(actual, expected)
    if distance is None:
        reason = f"random numbers, too few to compare their distribution (at least {_MIN_SAMPLES})"
        return judged("no value", reason)
    same = distance[0] <= distance[1]
    statistic = f"Kolmogorov-Smirnov statistic {distance[0]:.1e}, limit {distance[1]:.1e}"
    reason = f"random numbers of {'the same' if same else 'another'} distribution ({statistic})"
    return judged("same" if same else "different", reason, evidence="eager")
