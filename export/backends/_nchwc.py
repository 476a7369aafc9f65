"""ONNX Runtime's blocked layout: its convolutions on the CPU keep 8 or 16 channels side by side (NCHWc)."""

import re
from collections.abc import Collection
from dataclasses import dataclass

import torch

from ..graph._graph import Graph
from ..graph._nodes import Node

DOMAIN = "com.microsoft.nchwc::"
_ACTIVATIONS = frozenset({"Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})
CHANNELS_LAST = (0, 2, 3, 1)
WIDENED = "InsertedPrecisionFreeCast_"  # what ONNX Runtime puts before the name of a float16 value held in float32
_NAME = re.compile(rf"({WIDENED})?(?P<value>.+)_nchwc(_token_\d+)?")  # ONNX Runtime numbers what would not be unique


@dataclass(frozen=True)
class Unblocked:
    """A blocked tensor as ONNX has it: `[N, C, H, W]`, without the channels that fill the last block.

    Attributes:
        channels: how many there are without those.
        block: how many stand side by side.
    """

    channels: int
    block: int

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Do it."""
        batch, padded, *space = tensor.shape
        blocks = tensor.reshape(batch, padded // self.block, *space, self.block)
        plain = blocks.movedim(-1, 2).reshape(batch, padded, *space)
        return plain[:, : self.channels]

    def back(self, tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Undo it, with zeros in the channels that fill the last block; `before` has the shape that it had."""
        batch, padded, *space = before.shape
        plain = tensor.new_zeros(batch, padded, *space)
        plain[:, : self.channels] = tensor
        return plain.reshape(batch, padded // self.block, self.block, *space).movedim(2, -1).reshape(before.shape)


def held_by(node: Node, exported: Graph) -> str | None:
    """The exported value that a blocked node makes.

    The node is named after the value that it made when it was created. Afterwards a sum (its fourth input) and then an
    activation may have been fused into it.
    """
    named = _NAME.fullmatch(node.name)
    if named is None or named["value"] not in exported.known:
        return None
    value: str | None = named["value"]
    summed = len(node.inputs) > 3 and bool(node.inputs[3])
    if summed:
        value = _next(named["value"], ("Add",), exported)
    if value is None or not node.attributes.get("activation") or (not summed and _makes(value, _ACTIVATIONS, exported)):
        return value
    # That it is another activation than the exported one, or of something without the sum, is for the numbers to show.
    ends = (value, _next(value, ("Add",), exported))
    return next((found for end in ends if end and (found := _next(end, _ACTIVATIONS, exported))), None)


def _makes(value: str, ops: Collection[str], exported: Graph) -> bool:
    node = exported.producer.get(value)
    return node is not None and node.op in ops


def _next(value: str, ops: Collection[str], exported: Graph) -> str | None:
    """What the only node of these operators makes of a value."""
    users = [node for node in exported.consumers.get(value, ()) if node.op in ops]
    return users[0].outputs[0] if len(users) == 1 else None
