"""Measure how far numbers are from the point where a decision changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from filch.export import Node

from ._noise import unit_of
from ._ties import axis_of, leaves_order_open, selecting_node
from ._verdict import Flips


class Margins(NamedTuple):
    """How far the numbers that decisions compare are from the point where each of the decisions changes.

    Attributes:
        distance: this distance, of each element of the decision.
        level: how far rounding may move the compared numbers; of the same shape.
    """

    distance: torch.Tensor
    level: torch.Tensor


@dataclass(frozen=True)
class Compared:
    """Numbers that a decision compares.

    Attributes:
        value: the numbers in float64.
        level: how far rounding may move each of them; of the same shape.
    """

    value: torch.Tensor
    level: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Compared":
        """Return numbers that rounding to their own dtype alone may move."""
        return cls(tensor.double(), tensor.double().abs() * unit_of(tensor.dtype))


Operands = Mapping[str, Compared]  # the floating-point numbers that a deciding node reads, by name


def deciding_node(name: str, node: Node, producers: Mapping[str, Node]) -> Node | None:
    """Return the node that compares numbers to compute a decision; None if it is not known how it does.

    Args:
        name: the name of the decision.
        node: the node that returns it.
        producers: the nodes of the graph by the names of their outputs.
    """
    decision = node.operator.decision
    return selecting_node(name, node, producers) or (node if decision and decision.kind != "selection" else None)


def margins_of(node: Node, operands: Operands, actual: torch.Tensor, expected: torch.Tensor) -> Margins | None:
    """Return the margins of a decision; None if an operand is not known, or an index is out of range.

    Between two indices, the margin is the difference of the numbers that they select; of a comparison, the difference
    of the compared numbers; of a conversion to integers, a search for buckets or a function that rounds, the distance
    from the nearest number that has the other integer. Where both decisions are the same, the margin has no meaning.

    Args:
        node: see `deciding_node`.
        operands: the floating-point numbers that it reads, by name.
        actual: the decision.
        expected: the decision of the model.
    """
    decision = node.operator.decision
    try:
        margins = None if decision is None else _MEASURES[decision.kind](node, operands, actual, expected)
    except (RuntimeError, LookupError):
        return None
    if margins is None:
        return None
    distance, level = (item.expand(actual.shape) for item in margins)
    return Margins(distance.nan_to_num(nan=torch.inf, posinf=torch.inf), level.nan_to_num(nan=0.0, posinf=0.0))


def flips_of(margins: Margins, differs: torch.Tensor) -> Flips:
    """Return how many decisions differ, and the margin of the one that rounding explains least.

    Args:
        margins: the margins of all decisions.
        differs: which decisions differ, in the same shape; at least one.
    """
    differing = Margins(margins.distance[differs], margins.level[differs])
    index = int(_ratios(differing).argmax())
    return Flips(len(differing.level), differs.numel(), float(differing.distance[index]), float(differing.level[index]))


def _ratios(margins: Margins) -> torch.Tensor:
    """Return each distance as a multiple of its rounding level; 0 where both are 0."""
    return torch.where(margins.distance == 0, 0.0, margins.distance / margins.level)


def nearest_alternative(node: Node, operands: Operands, decision: torch.Tensor) -> torch.Tensor | None:
    """Return for each element of a decision the other one that the compared numbers are nearest to.

    Args:
        node: see `deciding_node`.
        operands: the floating-point numbers that it reads, by name.
        decision: what float64 decides.

    Returns:
        a tensor like `decision`; None if the operator has more alternatives than one, or is not known.
    """
    if decision.dtype == torch.bool:
        return ~decision
    how, numbers = node.operator.decision, operands.get(node.inputs[0])
    if how is not None and how.kind == "sign":
        return torch.where(decision == 0, 1.0, -decision)
    if how is None or numbers is None:
        return None
    if how.kind == "jump":  # the integer on the other side of the nearest jump; that from n to n + 1 is at n + offset
        above = numbers.value - decision > how.offset - 1 / 2
        return torch.where(above, decision + 1, decision - 1)
    if how.kind == "conversion":  # the integer on the other side of the nearest whole number
        boundary = numbers.value.round()
        return torch.where(boundary == decision, boundary - boundary.sign(), boundary).to(decision.dtype)
    axis = axis_of(node) if how.kind == "selection" else None
    if axis is None or how.largest is None:
        return None
    # The index of the second largest, or second smallest, number.
    lacks_axis = decision.dim() < numbers.value.dim()
    chosen = decision.unsqueeze(axis) if lacks_axis else decision
    sign = 1 if how.largest else -1
    other = (sign * numbers.value).scatter(axis, chosen, -torch.inf).argmax(axis, keepdim=True)
    return other.squeeze(axis) if lacks_axis else other


def _of_selection(node: Node, operands: Operands, actual: torch.Tensor, expected: torch.Tensor) -> Margins:
    """Return the differences of the numbers that two indices select."""
    axis, numbers = axis_of(node), operands[node.inputs[0]]
    value, level = numbers.value, numbers.level
    if axis is None:  # torch.argmax of all elements
        axis, value, level = 0, value.flatten(), level.flatten()
    lacks_axis = actual.dim() < value.dim()
    chosen = [indices.long().unsqueeze(axis) if lacks_axis else indices.long() for indices in (actual, expected)]
    if is_open := leaves_order_open(node):  # compares the smallest selected numbers with each other, and so on
        chosen = [indices.gather(axis, value.gather(axis, indices).argsort(axis)) for indices in chosen]
    (one, other), levels = ([item.gather(axis, indices) for indices in chosen] for item in (value, level))
    margins = Margins(_distance(one, other), levels[0] + levels[1])
    if is_open:  # the order of the indices is not that of the numbers any more: the largest margin counts for all
        worst = _ratios(margins).argmax(axis, keepdim=True)
        margins = Margins(*(item.gather(axis, worst).expand_as(one) for item in margins))
    return Margins(*(item.squeeze(axis) for item in margins)) if lacks_axis else margins


def _of_comparison(node: Node, operands: Operands, *_decisions: torch.Tensor) -> Margins | None:
    """Return the differences of the compared numbers, of which the second may be an attribute."""
    sides = [operands[name] for name in node.inputs if name]
    number = next((node.attributes[name] for name in ("arg1", "other") if name in node.attributes), None)
    if isinstance(number, int | float):
        exact = torch.tensor(float(number), dtype=torch.float64)
        sides.append(Compared(exact, torch.zeros_like(exact)))
    if len(sides) != 2:
        return None
    return Margins(_distance(sides[0].value, sides[1].value), sides[0].level + sides[1].level)


def _of_conversion(node: Node, operands: Operands, actual: torch.Tensor, expected: torch.Tensor) -> Margins:
    """Return the distances of numbers from where rounding towards 0 gives the other integer; of booleans, from 0."""
    numbers = operands[node.inputs[0]]
    size = numbers.value.abs()
    if actual.dtype == torch.bool:
        return Margins(size, numbers.level)
    sides = actual.double().abs(), expected.double().abs()
    lower, upper = torch.minimum(*sides), torch.maximum(*sides)
    # From `upper` on, a number is no more the smaller integer, which ends 1 above `lower`.
    return Margins(torch.maximum((size - upper).abs(), (size - lower - 1).abs()), numbers.level)


def _of_buckets(node: Node, operands: Operands, actual: torch.Tensor, expected: torch.Tensor) -> Margins | None:
    """Return the distances of numbers from the farthest boundary between their two buckets."""
    decision = node.operator.decision
    at = 0 if decision is None else decision.boundaries
    numbers, boundaries = (operands[node.inputs[index]] for index in (1 - at, at))
    if boundaries.value.dim() != 1:
        return None
    last = len(boundaries.value) - 1
    nearest, farthest = torch.minimum(actual, expected), torch.maximum(actual, expected) - 1
    distance, level = torch.zeros_like(numbers.value), numbers.level
    for index in (nearest.clamp(0, last).long(), farthest.clamp(0, last).long()):
        distance = torch.maximum(distance, _distance(numbers.value, boundaries.value[index]))
        level = torch.maximum(level, numbers.level + boundaries.level[index])
    return Margins(distance, level)


def _distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the distances of numbers; equal infinities have none."""
    return torch.where(one == other, 0.0, (one - other).abs())


def _of_jump(node: Node, operands: Operands, actual: torch.Tensor, expected: torch.Tensor) -> Margins | None:
    """Return the distances of numbers from the farthest jump between their two integers."""
    numbers, decision = operands[node.inputs[0]], node.operator.decision
    if decision is None or "decimals" in node.attributes:  # rounded to decimals, numbers jump elsewhere
        return None
    lower, upper = (choose(actual, expected).double() for choose in (torch.minimum, torch.maximum))
    first, last = ((numbers.value - end).abs() for end in (lower + decision.offset, upper - 1 + decision.offset))
    return Margins(torch.maximum(first, last), numbers.level)


def _of_sign(node: Node, operands: Operands, *_decisions: torch.Tensor) -> Margins:
    """Return the distances of numbers from 0."""
    numbers = operands[node.inputs[0]]
    return Margins(numbers.value.abs(), numbers.level)


_MEASURES: Mapping[str, Callable[..., Margins | None]] = {  # by the kind of the decision; see `margins_of`
    "selection": _of_selection,
    "comparison": _of_comparison,
    "conversion": _of_conversion,
    "buckets": _of_buckets,
    "jump": _of_jump,
    "sign": _of_sign,
}
