"""Indices that are others, of numbers that are the same."""

from dataclasses import replace

import torch

from filch.export import Node

from . import RoundingVerdict


def with_ties(
    judgement: RoundingVerdict | None,
    node: Node,
    numbers: torch.Tensor | None,
    actual: torch.Tensor,
    reference: torch.Tensor | None,
) -> RoundingVerdict | None:
    """A judgement of indices, which are no fault where the numbers that they stand for are exactly equal.

    Args:
        judgement: of what `node` made.
        node: a TopK, an ArgMax or an ArgMin; anything else is judged as it is.
        numbers: what it chose from.
        actual: the indices that it gave.
        reference: those that it should have given.
    """
    if judgement is None or judgement.sound or numbers is None or reference is None:
        return judgement
    if node.op not in _CHOOSE or actual.dtype != torch.int64:
        return judgement
    axis = int(node.attributes.get("axis", _CHOOSE[node.op]))
    dropped = node.op != "TopK" and not node.attributes.get("keepdims", 1)
    chosen, right = (item.unsqueeze(axis) if dropped else item for item in (actual, reference))
    try:
        alike = torch.equal(numbers.gather(axis, chosen), numbers.gather(axis, right))
    except (RuntimeError, IndexError):  # they are no places in it
        return judgement
    count = int(torch.ne(actual, reference).sum())
    note = f"exact ties: {count} are others of the same numbers"
    return replace(judgement, verdict="rounding", ratio=1.0, note=note) if alike else judgement


_CHOOSE = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}  # along which axis, where it does not say
