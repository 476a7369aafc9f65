"""Limit the memory of tensors that repeat their numbers: a few stored bytes can be expanded to terabytes."""

from collections.abc import Iterable

import torch

from filch.steal.values._tensors import unexpand

_ALWAYS_ALLOWED = 2**31  # bytes, however few of them are stored
_MOST_REPEATED = 64


def repetition_problem(size: int, tensors: Iterable[torch.Tensor]) -> str:
    """Return how far `size`, the bytes of some tensors, exceeds what they store; `""` if it is allowed."""
    if size <= _ALWAYS_ALLOWED or size <= _MOST_REPEATED * sum(unexpand(tensor).nbytes for tensor in tensors):
        return ""
    return f"{size / 2**30:,.1f} GiB, more than {_MOST_REPEATED} times what is stored"


def without_repetition(actual: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return both without the dimensions along which both are expanded, and the product of these dimensions."""
    times = 1
    for dim, size in enumerate(expected.shape):
        if size > 1 and expected.stride(dim) == actual.stride(dim) == 0:
            actual, expected = actual.detach().narrow(dim, 0, 1), expected.detach().narrow(dim, 0, 1)
            times *= size
    return actual, expected, times
