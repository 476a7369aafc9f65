"""Operators that run graphs: branches and loops."""

from collections.abc import Sequence
from typing import Any

import torch

from ._operator import NodeCall, Operator, Tensor, UnsupportedError, number


def _branch(call: NodeCall, condition: Tensor) -> tuple[Any, ...]:
    return tuple(call.run(call["then_branch" if bool(condition) else "else_branch"], ()))


def _loop(call: NodeCall, most: Tensor | None, condition: Tensor | None, *states: Any) -> tuple[Any, ...]:
    """Return the last states, and what the body returns besides its condition and states, stacked."""
    body, count = call["body"], None if most is None else int(number(most))
    kept: list[list[Tensor]] = [[] for _ in range(len(body.outputs) - 1 - len(states))]
    goes_on, at = condition is None or bool(condition), 0
    while goes_on and (count is None or at < count):
        flag, *results = call.run(body, (torch.tensor(at), _TRUE, *states))  # the condition is true
        goes_on, states, at = bool(flag), tuple(results[: len(states)]), at + 1
        for items, item in zip(kept, results[len(states) :], strict=True):
            items.append(item)
    if not at and kept:
        raise UnsupportedError("a loop without iterations, whose results have no known shape")
    return *states, *(torch.stack(items) for items in kept)


def _scan(call: NodeCall, *inputs: Tensor) -> tuple[Any, ...]:
    """Return the last states, and what the body returns besides them, stacked."""
    body, count = call["body"], call["num_scan_inputs"]
    states: Sequence[Tensor] = inputs[: len(inputs) - count]
    scanned, results = inputs[len(inputs) - count :], len(body.outputs) - (len(inputs) - count)
    axes = call.get("scan_input_axes") or [0] * count
    backward = call.get("scan_input_directions") or [0] * count
    items = [item.movedim(axis, 0) for item, axis in zip(scanned, axes, strict=True)]
    items = [item.flip(0) if flag else item for item, flag in zip(items, backward, strict=True)]
    kept: list[list[Tensor]] = [[] for _ in range(results)]  # the items of each output that is stacked
    for parts in zip(*items, strict=True):
        found = call.run(body, (*states, *parts))
        states = found[: len(states)]
        for part, item in zip(kept, found[len(states) :], strict=True):
            part.append(item)
    axes = call.get("scan_output_axes") or [0] * results
    backward = call.get("scan_output_directions") or [0] * results
    joined = [torch.stack(part[::-1] if flag else part) for part, flag in zip(kept, backward, strict=True)]
    return *states, *(item.movedim(0, axis) for item, axis in zip(joined, axes, strict=True))


def _batched_scan(call: NodeCall, lengths: Tensor | None, *inputs: Tensor) -> tuple[Any, ...]:
    """Return the form of version 8: for each item of a batch, in the directions of `directions`."""
    if lengths is not None:
        raise UnsupportedError("sequences of different lengths")
    given = {"scan_input_directions": call.get("directions"), "num_scan_inputs": call["num_scan_inputs"]}
    each = NodeCall(9, {"body": call["body"], **given}, run=call.run)
    results = [_scan(each, *parts) for parts in zip(*inputs, strict=True)]
    return tuple(torch.stack(items) for items in zip(*results, strict=True))


def _map_sequence(call: NodeCall, first: list[Tensor], *others: Any) -> tuple[list[Any], ...]:
    """Return a sequence for each output of the body; without items, it does not run."""
    results = []
    for at, item in enumerate(first):
        rest = [other[at] if isinstance(other, list) else other for other in others]
        results.append(call.run(call["body"], (item, *rest)))
    return tuple([*items] for items in zip(*results, strict=True)) or tuple([] for _ in range(call.outputs))


_TRUE = torch.tensor(1, dtype=torch.bool)

OPERATORS = (
    Operator("If", _branch),
    Operator("Loop", _loop),
    Operator("Scan", {8: _batched_scan, 9: _scan}),
    Operator("SequenceMap", _map_sequence, returns_sequence=True),
)
