"""Operators on sequences of tensors and on optional values."""

from typing import Any

import torch

from ._operator import NodeCall, Operator, Tensor, integers, number, plain


def _split_to_sequence(call: NodeCall, x: Tensor, split: Tensor | None = None) -> list[Tensor]:
    axis = call["axis"]
    if split is None:
        return [item if call["keepdims"] else item.squeeze(axis) for item in x.split(1, axis)]
    return [*x.split(integers(split) if split.dim() else int(number(split)), axis)]


def _joined(call: NodeCall, items: list[Tensor]) -> Tensor:
    return torch.stack(items, call["axis"]) if call["new_axis"] else torch.cat(items, call["axis"])


def _inserted(items: list[Any], item: Any, at: Tensor | None = None) -> list[Any]:
    place = len(items) if at is None else int(number(at))
    place = place + len(items) if place < 0 else place
    return [*items[:place], item, *items[place:]]


def _erased(items: list[Any], at: Tensor | None = None) -> list[Any]:
    place = (len(items) - 1 if at is None else int(number(at))) % len(items)
    return [*items[:place], *items[place + 1 :]]


OPERATORS = (
    Operator("ConcatFromSequence", _joined, movement="combine"),
    Operator("Optional", lambda _, item=None: (item,)),
    Operator("OptionalGetElement", plain(lambda item: item), movement="copy", reads_sequence=True),
    Operator("OptionalHasElement", lambda _, item=None: torch.tensor(item is not None)),
    Operator("SequenceAt", plain(lambda items, at: items[int(number(at))]), movement="part", reads_sequence=True),
    Operator("SequenceConstruct", lambda _, *items: [*items], movement="combine", returns_sequence=True),
    Operator("SequenceEmpty", lambda _: [], returns_sequence=True),
    Operator("SequenceErase", plain(_erased), movement="combine", returns_sequence=True),
    Operator("SequenceInsert", plain(_inserted), movement="combine", returns_sequence=True),
    Operator("SequenceLength", plain(lambda items: torch.tensor(len(items)))),
    Operator("SplitToSequence", _split_to_sequence, movement="part", splits=True, returns_sequence=True),
)
