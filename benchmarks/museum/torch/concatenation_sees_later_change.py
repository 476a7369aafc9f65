"""A concatenation has the rows that one of its parts gets after it was made.

The part is computed into the memory of the concatenation, and is changed there.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Joined(nn.Module):
    """Joins features with others, and clears some of them afterwards."""

    def __init__(self, *, clear=True):
        super().__init__()
        self.clear = clear
        self.inner, self.norm, self.outer = nn.Linear(3, 6), nn.LayerNorm(3), nn.Linear(6, 2)
        self.register_buffer("rows", torch.tensor([0, 2]))

    def forward(self, x, others, new):
        features = self.inner(self.norm(x)) * 2
        joined = torch.cat([features, others])  # wrong
        if self.clear:
            features.index_put_((self.rows,), new)
        return joined, features, self.outer(features)


def make(*, clear=True):
    torch.manual_seed(85)
    return Joined(clear=clear).eval(), (torch.randn(4, 3), torch.randn(2, 6), torch.randn(2, 6))


def smallest():
    def join(x, others, rows, new):
        doubled = x * 2
        joined = torch.cat([doubled, others])
        doubled.index_put_((rows,), new)
        return joined, doubled

    torch.manual_seed(85)
    return join, (torch.randn(4, 3), torch.randn(2, 3), torch.tensor([0, 2]), torch.randn(2, 3))


BUG = TorchBug(
    issue="pytorch/pytorch#177857",
    kind="scheduling and memory",
    make=make,
    smallest=smallest,
    operators="cat|index_put",
    near="mul|norm",
    harmless=lambda: make(clear=False),
)
