"""ONNX Runtime's blocked layout NCHWc, which its CPU convolutions use: blocks of 8 or 16 channels are contiguous."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..graph._graph import Graph
from ..graph._nodes import Node

DOMAIN = "com.microsoft.nchwc::"
CHANNELS_LAST = (0, 2, 3, 1)
FLOAT32_PREFIX = "InsertedPrecisionFreeCast_"  # names a float16 value that ONNX Runtime keeps in float32
_NODE_NAME = re.compile(rf"({FLOAT32_PREFIX})?(?P<value>.+)_nchwc(_token_\d+)?")  # a token makes the name unique


@dataclass(frozen=True)
class Unblock:
    """Converts a blocked tensor to `[N, C, H, W]`, without the padding channels of the last block.

    Attributes:
        channels: the number of channels without padding.
        block: the number of channels in a block.
    """

    channels: int
    block: int

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Transform.__call__`."""
        batch, padded_channels, *spatial = tensor.shape
        blocks = tensor.reshape(batch, padded_channels // self.block, *spatial, self.block)
        plain = blocks.movedim(-1, 2).reshape(batch, padded_channels, *spatial)
        return plain[:, : self.channels]

    def inverse(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """See `Transform.inverse`; the padding channels are 0."""
        batch, padded_channels, *spatial = like.shape
        plain = tensor.new_zeros(batch, padded_channels, *spatial)
        plain[:, : self.channels] = tensor
        blocks = plain.reshape(batch, padded_channels // self.block, self.block, *spatial)
        return blocks.movedim(2, -1).reshape(like.shape)


def exported_output(node: Node, exported: Graph) -> str | None:
    """Return the name of the exported value that a node with blocked output computes; None if it is not known.

    The node is named after its output when it was created. Afterwards ONNX Runtime may have fused a sum (its fourth
    input) and then an activation into it: then the value is that of the `Add` and of the activation that follow.
    """
    match = _NODE_NAME.fullmatch(node.name)
    if match is None or match["value"] not in exported.known:
        return None
    value: str | None = match["value"]
    has_sum = len(node.inputs) > 3 and bool(node.inputs[3])
    if has_sum:
        value = _output_of_consumer(match["value"], _is_sum, exported)
    if value is None or not node.attributes.get("activation"):
        return value
    producer = exported.producer.get(value)
    if not has_sum and producer is not None and producer.operator.activation:
        return value  # the node was created with its activation
    # Whether the node has the right activation and sum is not checked: a comparison of the numbers finds that.
    ends = filter(None, (value, _output_of_consumer(value, _is_sum, exported)))
    return next(filter(None, (_output_of_consumer(end, _is_activation, exported) for end in ends)), None)


def _is_sum(node: Node) -> bool:
    return node.operator.kind == "add"


def _is_activation(node: Node) -> bool:
    return node.operator.activation


def _output_of_consumer(value: str, is_wanted: Callable[[Node], bool], exported: Graph) -> str | None:
    """Return the output of the node that reads a value and is wanted; None if there is not exactly one."""
    users = [node for node in exported.consumers.get(value, ()) if is_wanted(node)]
    return users[0].outputs[0] if len(users) == 1 else None
