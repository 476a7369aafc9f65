"""Weights that are stored as integers of a few bits, with a scale for each block of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from filch.export import Node

GATHER = "com.microsoft::GatherBlockQuantized"  # takes rows of a table
PRODUCT: Mapping[str, str] = {"com.microsoft::MatMulNBits": "MatMul"}  # the operator that reads the weight itself
_BITS = (2, 4, 8)


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight that a node stores as integers.

    Attributes:
        numbers: what they stand for, in the dtype of the scales: as the second operand of MatMul, K x N, or a table.
        most: the largest difference of each from the number that was quantized: half a step, or a whole one at an end
            of the range, where symmetric quantization clips the largest number.
    """

    numbers: torch.Tensor
    most: torch.Tensor


def quantized_weight(node: Node, tensor: Callable[[str], torch.Tensor | None]) -> QuantizedWeight | None:
    """Return the weight that a node multiplies by, or takes rows of; None if it is no constant of integers.

    The formats are those of
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits: the integers
    of a byte are in the order of its bits, from the lowest.

    Args:
        node: the node.
        tensor: returns a constant by its name.
    """
    if node.op == GATHER:
        return _table(node, tensor)
    if node.op not in PRODUCT:
        return None
    integers, scales, zeros, order = _operands(node, (1, 2, 3, 4), tensor)
    bits, block, size, count = (int(node.attributes.get(name, 4)) for name in ("bits", "block_size", "K", "N"))
    if integers is None or scales is None or order is not None or bits not in _BITS or block < 1:
        return None
    found = _weight(integers, scales, zeros, bits, (count, -(-size // block), block))
    return found and QuantizedWeight(found.numbers[:, :size].T.contiguous(), found.most[:, :size].T.contiguous())


def _table(node: Node, tensor: Callable[[str], torch.Tensor | None]) -> QuantizedWeight | None:
    """Return the table of which a node takes rows, if its integers are in bytes."""
    integers, scales, zeros = _operands(node, (0, 2, 3), tensor)
    settings = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1, **node.attributes}
    bits, block, *axes = (int(settings[name]) for name in ("bits", "block_size", "gather_axis", "quantize_axis"))
    if integers is None or integers.dtype != torch.uint8 or scales is None or scales.dim() != len(axes):
        return None
    is_supported = axes in ([0, 1], [0, -1]) and bits in _BITS
    return _weight(integers, scales, zeros, bits, (len(scales), scales.shape[1], block)) if is_supported else None


def _operands(
    node: Node, indices: Sequence[int], tensor: Callable[[str], torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Return the inputs of a node at some indices; None for one that is left out or no constant."""
    names = [node.inputs[index] if index < len(node.inputs) else "" for index in indices]
    return [tensor(name) if name else None for name in names]


def _weight(
    integers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, sizes: tuple[int, int, int]
) -> QuantizedWeight | None:
    """Return a weight with blocks along its rows; None if the tensors have other sizes.

    Args:
        integers: the stored ones, several in a byte.
        scales: one for each block.
        zeros: the integer that stands for 0 in each block, packed likewise or as a number; None for the middle one.
        bits: of each integer.
        sizes: the number of rows, of the blocks of each row, and of the elements of a block.
    """
    count, blocks, block = sizes
    if integers.numel() * 8 != count * blocks * block * bits or scales.numel() != count * blocks:
        return None
    scales = scales.reshape(count, blocks, 1)
    zero = torch.tensor(1 << (bits - 1))
    if zeros is not None:
        zero = _unpacked(zeros, bits) if zeros.dtype == torch.uint8 else zeros
        if zero.numel() < count * blocks or zero.numel() % count:
            return None
        zero = zero.reshape(count, -1)[:, :blocks, None]  # rows are padded to whole bytes
    stored = _unpacked(integers, bits).reshape(count, blocks, block)
    steps = torch.where((stored == 0) | (stored == (1 << bits) - 1), 1.0, 0.5)
    numbers, most = (stored.to(scales.dtype) - zero.to(scales.dtype)) * scales, steps * scales.abs()
    return QuantizedWeight(numbers.reshape(count, -1), most.reshape(count, -1))


def _unpacked(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the integers of so many bits that are stored in bytes, along the last dimension."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)
