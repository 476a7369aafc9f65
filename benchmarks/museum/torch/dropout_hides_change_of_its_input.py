"""A dropout that does nothing returns its input, but a change of the result in place does not reach that input."""

import torch
import torch.nn.functional as F
from torch import nn

from museum._bug import TorchBug


class Branch(nn.Module):
    """Scales features behind a dropout in place, and reads the features themselves."""

    def __init__(self, *, aside=False):
        super().__init__()
        self.aside = aside
        self.inner, self.norm, self.outer = nn.Linear(5, 11), nn.LayerNorm(11), nn.Linear(11, 2)

    def forward(self, x):
        x = F.silu(self.inner(x))
        kept = F.dropout(x.clone() if self.aside else x, 0.3, self.training)
        kept.mul_(3.0)  # wrong
        return self.outer(self.norm(x + kept.square()))


def make(*, aside=False):
    torch.manual_seed(45)
    return Branch(aside=aside).eval(), (torch.randn(4, 5),)


def smallest():
    def double(x):
        F.dropout(x, 0.5, False).mul_(2.0)
        return x

    torch.manual_seed(45)
    return double, (torch.randn(6),)


BUG = TorchBug(
    issue="pytorch/pytorch#195422",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="dropout|mul",
    near="add|square|pow",
    harmless=lambda: make(aside=True),
)
