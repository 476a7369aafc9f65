"""Accept different indices where the indexed numbers are equal."""

from dataclasses import replace

import torch

from filch.export import Node

from . import RoundingVerdict


def with_ties(
    verdict: RoundingVerdict | None,
    node: Node,
    node_input: torch.Tensor | None,
    actual: torch.Tensor,
    reference: torch.Tensor | None,
) -> RoundingVerdict | None:
    """Return the verdict of indices: different ones count as rounding if the numbers that they select are equal.

    Args:
        verdict: the verdict of the output of `node`.
        node: a TopK, ArgMax or ArgMin; the verdict of any other node is returned unchanged.
        node_input: the first input of the node, from which the indices select.
        actual: the computed indices.
        reference: the expected indices.
    """
    if verdict is None or verdict.sound or node_input is None or reference is None:
        return verdict
    if node.op not in _DEFAULT_AXES or actual.dtype != torch.int64:
        return verdict
    axis = int(node.attributes.get("axis", _DEFAULT_AXES[node.op]))
    lacks_axis = node.op != "TopK" and not node.attributes.get("keepdims", 1)
    try:
        selected, expected = (
            node_input.gather(axis, indices.unsqueeze(axis) if lacks_axis else indices)
            for indices in (actual, reference)
        )
    except (RuntimeError, IndexError):  # the indices are out of range
        return verdict
    if not torch.equal(selected, expected):
        return verdict
    count = int(torch.ne(actual, reference).sum())
    note = f"exact ties: {count} different indices select equal numbers"
    return replace(verdict, verdict="rounding", ratio=1.0, note=note)


_DEFAULT_AXES = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}
