"""Rows are written to an input, and the reversed input is added to it in one loop that reads what it has written."""

import torch
from torch import nn

from museum._bug import TorchBug


class Folded(nn.Module):
    """Writes rows to a table, and adds the table to itself in reversed order."""

    def __init__(self, *, write=True):
        super().__init__()
        self.write = write
        self.inner, self.norm, self.outer = nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2)
        self.register_buffer("rows", torch.tensor([1, 3, 4]))

    def forward(self, table, x):
        new = self.norm(torch.relu(self.inner(x)))
        if self.write:
            table.index_copy_(0, self.rows, new)
        table.add_(table.flip(0))  # wrong
        return self.outer(table)


def make(*, write=True):
    torch.manual_seed(82)
    return Folded(write=write).eval(), (torch.randn(8, 6), torch.randn(3, 3))


def smallest():
    def fold(x):
        x.index_put_((torch.arange(4),), x * 2.0)
        return x.add_(x.flip(0))

    torch.manual_seed(82)
    return fold, (torch.randn(4, 3),)


BUG = TorchBug(
    issue="pytorch/pytorch#198270",
    kind="scheduling and memory",
    make=make,
    smallest=smallest,
    operators="flip|add|copy_",
    near="index_copy|index_put|linear|mm",
    harmless=lambda: make(write=False),
)
