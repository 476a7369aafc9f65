"""Measure how far numbers are from the point where a decision changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from filch.export import Node

from ._ties import axis_of, leaves_order_open, selecting_node
from ._verdict import Flips

Margins = tuple[torch.Tensor, torch.Tensor]  # of each element: the distance, and how far rounding may move the numbers


@dataclass(frozen=True)
class Compared:
    """Numbers that a decision compares.

    Attributes:
        value: the numbers in float64.
        level: how far rounding may move each of them; of the same shape.
    """

    value: torch.Tensor
    level: torch.Tensor


def deciding_node(name: str, node: Node, producers: Mapping[str, Node]) -> Node | None:
    """Return the node that compares numbers to compute a decision; None if it is not known how it does.

    Args:
        name: the name of the decision.
        node: the node that returns it.
        producers: the nodes of the graph by the names of their outputs.
    """
    decision = node.operator.decision
    return selecting_node(name, node, producers) or (node if decision and decision.kind != "selection" else None)


def margins_of(
    node: Node, operands: Mapping[str, Compared], actual: torch.Tensor, expected: torch.Tensor
) -> Margins | None:
    """Return the margin of each element of a decision, and its rounding level; None if an operand is not known.

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
        found = None if decision is None else _MEASURES[decision.kind](node, operands, actual, expected)
    except (RuntimeError, IndexError):  # the indices are out of range
        return None
    if found is None:
        return None
    margin, level = (item.expand(actual.shape) for item in found)
    return margin.nan_to_num(nan=torch.inf, posinf=torch.inf), level.nan_to_num(nan=0.0, posinf=0.0)


def flips_of(margins: Margins, differs: torch.Tensor) -> Flips:
    """Return how many decisions differ, and the margin of the one that rounding explains least.

    That is the element whose margin is the largest multiple of its rounding level.

    Args:
        margins: the margin of each element and its rounding level (see `margins_of`).
        differs: which elements differ, in the same shape; at least one.
    """
    margin, level = margins[0][differs], margins[1][differs]
    ratios = torch.where(margin == 0, 0.0, margin / level)  # also where both are 0
    index = int(ratios.argmax())
    return Flips(len(ratios), differs.numel(), float(margin[index]), float(level[index]))


def nearest_alternative(node: Node, operands: Mapping[str, Compared], decision: torch.Tensor) -> torch.Tensor | None:
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
    if how is None or how.kind == "sign":
        return None if how is None else torch.where(decision == 0, 1.0, -decision)
    if numbers is None:
        return None
    if how.kind == "jump":  # beyond the nearest one
        above = numbers.value - decision > how.offset - 1 / 2
        return torch.where(above, decision + 1, decision - 1)
    if how.kind == "conversion":
        boundary = numbers.value.round()
        return torch.where(boundary == decision, boundary - boundary.sign(), boundary).to(decision.dtype)
    axis = axis_of(node) if how.kind == "selection" else None
    if axis is None or how.largest is None:
        return None
    lacks_axis = decision.dim() < numbers.value.dim()
    chosen = decision.unsqueeze(axis) if lacks_axis else decision
    sign = 1 if how.largest else -1
    other = (sign * numbers.value).scatter(axis, chosen, -torch.inf).argmax(axis, keepdim=True)
    return other.squeeze(axis) if lacks_axis else other


def _of_selection(
    node: Node, operands: Mapping[str, Compared], actual: torch.Tensor, expected: torch.Tensor
) -> Margins | None:
    numbers = operands.get(node.inputs[0])
    if numbers is None:
        return None
    axis, value, level = axis_of(node), numbers.value, numbers.level
    if axis is None:  # torch.argmax of all elements
        axis, value, level = 0, value.flatten(), level.flatten()
    lacks_axis = actual.dim() < value.dim()
    chosen = [indices.long().unsqueeze(axis) if lacks_axis else indices.long() for indices in (actual, expected)]
    if is_open := leaves_order_open(node):
        chosen = [indices.gather(axis, value.gather(axis, indices).argsort(axis)) for indices in chosen]
    (one, other), levels = ([item.gather(axis, indices) for indices in chosen] for item in (value, level))
    found = _distance(one, other), levels[0] + levels[1]
    if is_open:  # the order of the indices is not that of the numbers any more: the largest margin counts for all
        worst = torch.where(found[0] == 0, 0.0, found[0] / found[1]).argmax(axis, keepdim=True)
        found = found[0].gather(axis, worst).expand_as(one), found[1].gather(axis, worst).expand_as(one)
    return (found[0].squeeze(axis), found[1].squeeze(axis)) if lacks_axis else found


def _of_comparison(
    node: Node, operands: Mapping[str, Compared], _actual: torch.Tensor, _expected: torch.Tensor
) -> Margins | None:
    sides = [operands.get(name) for name in node.inputs if name]
    number = next((node.attributes[name] for name in ("arg1", "other") if name in node.attributes), None)
    if isinstance(number, int | float):
        exact = torch.tensor(float(number), dtype=torch.float64)
        sides.append(Compared(exact, torch.zeros_like(exact)))
    if len(sides) != 2 or sides[0] is None or sides[1] is None:
        return None
    return _distance(sides[0].value, sides[1].value), sides[0].level + sides[1].level


def _of_conversion(
    node: Node, operands: Mapping[str, Compared], actual: torch.Tensor, expected: torch.Tensor
) -> Margins | None:
    numbers = operands.get(node.inputs[0])
    if numbers is None:
        return None
    if actual.dtype == torch.bool:
        return numbers.value.abs(), numbers.level
    size, sides = numbers.value.abs(), [item.double() for item in (actual, expected)]
    lower = torch.minimum(sides[0].abs(), sides[1].abs())
    upper = torch.maximum(sides[0].abs(), sides[1].abs())
    # Conversions round towards 0: from `upper` on, a number is no more the smaller integer, which ends 1 above `lower`.
    return torch.maximum((size - upper).abs(), (size - lower - 1).abs()), numbers.level


def _of_buckets(
    node: Node, operands: Mapping[str, Compared], actual: torch.Tensor, expected: torch.Tensor
) -> Margins | None:
    decision = node.operator.decision
    at = 0 if decision is None else decision.boundaries
    numbers, boundaries = (operands.get(node.inputs[index]) for index in (1 - at, at))
    if numbers is None or boundaries is None or boundaries.value.dim() != 1 or not len(boundaries.value):
        return None
    last = len(boundaries.value) - 1
    nearest, farthest = torch.minimum(actual, expected), torch.maximum(actual, expected) - 1
    margin, level = torch.zeros_like(numbers.value), numbers.level
    for index in (nearest.clamp(0, last).long(), farthest.clamp(0, last).long()):
        margin = torch.maximum(margin, _distance(numbers.value, boundaries.value[index]))
        level = torch.maximum(level, numbers.level + boundaries.level[index])
    return margin, level


def _distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the distances of numbers; equal infinities have none."""
    return torch.where(one == other, 0.0, (one - other).abs())


def _of_jump(
    node: Node, operands: Mapping[str, Compared], actual: torch.Tensor, expected: torch.Tensor
) -> Margins | None:
    numbers, decision = operands.get(node.inputs[0]), node.operator.decision
    if numbers is None or decision is None or "decimals" in node.attributes:
        return None
    lower, upper = (choose(actual, expected).double() for choose in (torch.minimum, torch.maximum))
    ends = lower + decision.offset, upper - 1 + decision.offset
    first, last = ((numbers.value - end).abs() for end in ends)
    return torch.maximum(first, last), numbers.level


def _of_sign(node: Node, operands: Mapping[str, Compared], *_: torch.Tensor) -> Margins | None:
    numbers = operands.get(node.inputs[0])
    return None if numbers is None else (numbers.value.abs(), numbers.level)


_Measure = Callable[[Node, Mapping[str, Compared], torch.Tensor, torch.Tensor], Margins | None]
_MEASURES: Mapping[str, _Measure] = {  # by the kind of the decision
    "selection": _of_selection,
    "comparison": _of_comparison,
    "conversion": _of_conversion,
    "buckets": _of_buckets,
    "jump": _of_jump,
    "sign": _of_sign,
}
