"""Accept different indices where the indexed numbers are equal."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from filch.export import Graph, Node

from ._verdict import Flips, RoundingVerdict


def with_ties(
    verdict: RoundingVerdict,
    node: Node | None,
    node_input: torch.Tensor | None,
    actual: torch.Tensor,
    reference: torch.Tensor | None,
    *,
    any_order: bool = False,
) -> RoundingVerdict:
    """Return the verdict of indices: different ones are a decision if the numbers that they select are equal.

    If their order is left open, another one is a decision, too.

    Args:
        verdict: the verdict of the output of `node`.
        node: the node that selects (see `selecting_node`); the verdict is returned unchanged if it is None.
        node_input: the first input of the node, from which the indices select.
        actual: the computed indices.
        reference: the expected indices.
        any_order: whether the model leaves the order of the indices open (see `unordered_indices`).
    """
    if verdict.verdict == "same" or node is None or node_input is None or reference is None:
        return verdict
    if actual.dtype != torch.int64:  # these are no indices
        return verdict
    axis = axis_of(node)
    if axis is None:  # torch.argmax of all elements
        node_input, axis = node_input.flatten(), 0
    lacks_axis = actual.dim() < node_input.dim()
    try:
        selected, expected = (
            node_input.gather(axis, indices.unsqueeze(axis) if lacks_axis else indices)
            for indices in (actual, reference)
        )
    except (RuntimeError, IndexError):  # the indices are out of range
        return verdict
    is_order = any_order and torch.equal(*(item.sort(axis).values for item in (actual, reference)))
    if any_order:
        selected, expected = (item.sort(axis).values for item in (selected, expected))
    if not is_order and not torch.equal(selected, expected):
        return verdict
    count = int(torch.ne(actual, reference).sum())
    flips = Flips(count, actual.numel(), margin=0.0, level=0.0, is_order=is_order)
    note = "the model leaves it open" if is_order else "they select equal numbers"
    return replace(verdict, verdict="decision", ratio=0.0, note=note, flips=flips)


def unordered_indices(graph: Graph) -> frozenset[str]:
    """Return the names of indices of a graph whose order is left open.

    If the selected numbers are used, too, they have to be in the same order as the indices, which is not checked.
    """
    producers = graph.producer
    selecting = ((name, selecting_node(name, node, producers)) for name, node in producers.items())
    return frozenset(
        name
        for name, node in selecting
        if node is not None and leaves_order_open(node) and not _numbers_are_used(node, graph)
    )


def _numbers_are_used(node: Node, graph: Graph) -> bool:
    """Return whether anything reads the numbers that a node selects, and not their indices alone."""
    numbers = node.outputs[:1]
    if len(node.outputs) == 1:  # of torch: a tuple, from which other nodes take the results
        users = graph.consumers.get(node.outputs[0], ())
        # `arg1` is the second argument of getitem, the index; the numbers are the first result.
        numbers = tuple(name for user in users if user.attributes.get("arg1") == 0 for name in user.outputs)
    return any(name in graph.outputs or graph.consumers.get(name) for name in numbers)


def unordered_axes(graph: Graph) -> dict[str, int]:
    """Return the axis along which the order of numbers, or of their indices, is left open, by the names of values."""
    nodes = [node for node in graph.nodes if len(node.outputs) > 1 and leaves_order_open(node)]
    return {name: axis for node in nodes if (axis := axis_of(node)) is not None for name in node.outputs}


def leaves_order_open(node: Node) -> bool:
    """Return whether a node selects numbers in any order, as `topk(..., sorted=False)` does."""
    decision = node.operator.decision
    if decision is None or decision.kind != "selection":
        return False
    # `arg4` is the same argument of torch.topk by its position.
    return not next((node.attributes[name] for name in ("sorted", "arg4") if name in node.attributes), True)


def selecting_node(name: str, node: Node, producers: Mapping[str, Node]) -> Node | None:
    """Return the node that selects the numbers whose indices a value has; None if the value has no such indices.

    Args:
        name: the name of the value.
        node: the node that returns it: the one that selects, or one that gets one of its results.
        producers: the nodes of the graph by the names of their outputs.
    """
    decision = node.operator.decision  # `output` is the position of the indices among the results
    if decision is not None and decision.kind == "selection" and name in node.outputs[decision.output :]:
        return node
    before = producers.get(node.inputs[0]) if node.op == "getitem" and node.inputs else None
    decision = None if before is None else before.operator.decision
    if before is None or decision is None or decision.kind != "selection" or not decision.output:
        return None
    # max(x, y)[1] is a row of numbers, as is argmax(x)[1] of indices.
    return before if node.attributes.get("arg1") == decision.output and len(before.inputs) == 1 else None


def axis_of(node: Node) -> int | None:
    """Return the dimension along which a node selects; None if it is all dimensions of the flattened input."""
    how = node.operator.decision
    if how is None:
        return None
    axis = next((node.attributes[name] for name in ("axis", "dim", how.axis) if name in node.attributes), how.default)
    return axis if isinstance(axis, int) else None
