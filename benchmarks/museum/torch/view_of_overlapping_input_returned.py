"""A part of an input is returned as a part of another input, which it shares memory with.

AOTAutograd replaces the two inputs by the memory of both, and forgets where in it the second one starts.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Shifted(nn.Module):
    """Changes a table, and reads a row of the same table without its first row."""

    def __init__(self, first):
        super().__init__()
        self.first = first
        self.inner, self.norm, self.outer = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)

    @torch.compiler.disable
    def parts(self, x):
        return x, x[self.first :]

    def row(self, x):
        whole, rest = self.parts(x)
        whole.mul_(0.5)
        return rest[0]  # wrong

    def forward(self, x):
        return self.outer(self.row(self.norm(torch.tanh(self.inner(x)))))


def make(first=2):
    torch.manual_seed(62)
    return Shifted(first).eval(), (torch.randn(5, 4),)


def smallest():
    @torch.compiler.disable
    def parts(x):
        return x, x[1:]

    def row(x):
        whole, rest = parts(x)
        whole.add_(1.0)
        return rest[0]

    torch.manual_seed(62)
    return row, (torch.randn(3, 2),)


BUG = TorchBug(
    issue="pytorch/pytorch#198095",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="select|as_strided|getitem|mul",
    near="slice|linear|mm",
    harmless=lambda: make(0),
)
