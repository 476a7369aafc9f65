"""Judge what a model leaves open: the order of numbers, as `topk(..., sorted=False)`, and the choice in a near-tie."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from filch.export import Node

from ..float64._verdict import Float64Value, RoundingVerdict
from ._facts import LaterRules, Rule, RunFacts
from ._run import Pair

Ties = Mapping[int, int]  # by axis, 1 or -1; see `filch.export.operators.NodeCall`
_AXES = 4  # at most, whose ties are tried, each in both directions


class SelectedIndices(Rule):
    """Indices are wrong if they are not those of the numbers that their node selects in any order."""

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._selected: dict[str, torch.Tensor] = {}

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return `wrong` for indices of other numbers; else the verdict of the later rules.

        The numbers that a node selects are judged before their indices, and kept until then.
        """
        axis, node = self.facts.open_axes.get(pair.exported_name), pair.node
        if axis is None or pair.name == node.outputs[0]:  # in a given order, or the numbers themselves
            self._selected |= {} if axis is None else {pair.name: pair.tensor}
            return later_rules(pair)
        numbers, source = self._selected.pop(node.outputs[0], None), pair.inputs(node.inputs[0])
        source = self.facts.run.inputs.get(node.inputs[0]) if source is None else source
        if numbers is None or source is None or torch.equal(source.gather(axis, pair.tensor), numbers):
            return later_rules(pair)
        return RoundingVerdict("wrong", math.inf, math.inf, note="they are not the indices of the selected numbers")


class AnyOrder(Rule):
    """Numbers in any order are compared in the same one."""

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules on the value, sorted as its float64 value and reference are.

        Indices that have a reference are left to `OwnDecisions`, which accepts them in any order.
        """
        axis, exact, expected = self.facts.open_axes.get(pair.exported_name), pair.exact, pair.expected
        if axis is None or exact is None or expected is None or (pair.is_decision and pair.reference is not None):
            return later_rules(pair)
        if not pair.tensor.shape == expected.shape == exact.value.shape:
            return later_rules(pair)
        tensor, reference, value, noisy = (
            item.sort(axis).values for item in (pair.tensor, expected, exact.value, exact.noisy)
        )
        exact = replace(exact, value=value, noisy=noisy)
        return later_rules(replace(pair, tensor=tensor, reference=reference, exact=exact))


class NearTies(Rule):
    """A nearest `Resize` may choose either number in a near-tie: float64 and the reference do as the run does."""

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules by a float64 value and reference that choose as the run does."""
        node, recompute = self.facts.program.exported.producer.get(pair.exported_name), self.facts.recompute
        if recompute is None or node is None or pair.exact is None or not _chooses_nearest(node):
            return later_rules(pair)
        given = self.facts.read_by(pair)
        source = given.get(node.inputs[0])
        if source is None:
            return later_rules(pair)

        def resized(ties: Ties) -> torch.Tensor | None:
            """Return what float64 computes if near-ties go in these directions."""
            found = recompute(given.get, ties=ties).get(pair.exported_name)
            return None if found is None else found.value

        exact, reference = with_near_ties(pair.exact, pair.tensor, pair.reference, source.shape, resized)
        return later_rules(replace(pair, exact=exact, reference=reference))


def _chooses_nearest(node: Node) -> bool:
    """Return whether a node is a `Resize` that takes the nearest of the numbers that it reads."""
    return node.op in ("Resize", "Upsample") and node.attributes.get("mode", "nearest") == "nearest"


def with_near_ties(
    exact: Float64Value,
    tensor: torch.Tensor,
    reference: torch.Tensor | None,
    shape: torch.Size,
    resized: Callable[[Ties], torch.Tensor | None],
) -> tuple[Float64Value, torch.Tensor | None]:
    """Return the value in float64, and the reference, with the choices in near-ties that the run has made.

    Args:
        exact: the value in float64.
        tensor: what the run has computed.
        reference: what the model has computed.
        shape: that of the input of the `Resize`.
        resized: returns what float64 computes from what the run has read, if near-ties go in these directions.

    Returns:
        both as they are if the run has made the same choices as they have, if the shapes do not fit, or if more than
        four axes are resized. Where the reference has chosen as the run has, it keeps its numbers.
    """
    plain = resized({})
    if plain is None or not exact.value.shape == tensor.shape == plain.shape or len(shape) != tensor.ndim:
        return exact, reference
    axes = [axis for axis, size in enumerate(shape) if size != tensor.shape[axis]]
    if len(axes) > _AXES:
        return exact, reference
    if torch.equal(plain.to(tensor.dtype), tensor) and (reference is None or torch.equal(reference, tensor)):
        return exact, reference
    shifts = [item - plain for item in _resized(axes, resized)]
    chosen = _nearest(exact.value, tensor, shifts)
    shifted = replace(exact, value=chosen, noisy=exact.noisy + (chosen - exact.value))
    if reference is None or reference.shape != tensor.shape:
        return shifted, reference
    chosen_by_reference = _nearest(exact.value, reference, shifts)
    return shifted, torch.where(chosen_by_reference == chosen, reference, chosen.to(reference.dtype))


def _resized(axes: list[int], resized: Callable[[Ties], torch.Tensor | None]) -> Iterator[torch.Tensor]:
    """Yield what a `Resize` computes for each combination of directions in which near-ties along its axes may go."""
    for directions in itertools.product((-1, 1), repeat=len(axes)):
        found = resized(dict(zip(axes, directions, strict=True)))
        if found is not None:
            yield found


def _nearest(exact: torch.Tensor, tensor: torch.Tensor, shifts: list[torch.Tensor]) -> torch.Tensor:
    """Return, for each element, the number that is nearest to the tensor's: the exact one, or it plus a shift.

    Args:
        exact: the numbers in float64.
        tensor: the numbers to come near to.
        shifts: the differences that other choices in near-ties make, each in the shape of `exact`.
    """
    wide = tensor.to(exact.dtype)
    best, distance = exact, (wide - exact).abs()
    for shift in shifts:
        distance_with_shift = (wide - exact - shift).abs()
        is_nearer = distance_with_shift < distance
        best = torch.where(is_nearer, exact + shift, best)
        distance = torch.where(is_nearer, distance_with_shift, distance)
    return best
