"""Numbers that are computed from the halves of an input are computed after the input has changed.

The view of the input with a smaller type is not seen as a read of it.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Packed(nn.Module):
    """Mixes features, and takes the halves of packed numbers before a part of them is cleared."""

    def __init__(self, *, clear=True):
        super().__init__()
        self.clear = clear
        self.inner, self.norm, self.outer = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, packed, x):
        x = self.outer(torch.tanh(self.norm(self.inner(x))))
        halves = packed.view(torch.int32) * 2  # wrong
        halves.sub_(1)
        if self.clear:
            packed[:, 1:4] = 0
        return x, halves.view(torch.int64)


def make(*, clear=True):
    torch.manual_seed(81)
    return Packed(clear=clear).eval(), (torch.randint(-(2**40), 2**40, (3, 5)), torch.randn(3, 4))


def smallest():
    def halves(packed):
        found = packed.view(torch.int32) * 2
        found.add_(1)
        packed[2:] = 0
        return found.view(torch.int64)

    torch.manual_seed(81)
    return halves, (torch.randint(-(2**40), 2**40, (6,)),)


BUG = TorchBug(
    issue="pytorch/pytorch#198101",
    kind="scheduling and memory",
    make=make,
    smallest=smallest,
    operators="mul|view",
    near="sub|add|copy|slice",
    harmless=lambda: make(clear=False),
)
