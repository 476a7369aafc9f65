"""Code that was compiled for two parts of a tensor that do not overlap is used for two that do.

Its first part is changed in place, which the second part has to see.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Windows(nn.Module):
    """Scales one window of a signal in place, and adds another one to it."""

    def __init__(self, start):
        super().__init__()
        self.start = start
        self.inner, self.middle, self.outer = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(5, 3)

    @torch.compiler.disable
    def windows(self, x, near):
        start = self.start if near else 7
        return x[:, :5], x[:, start : start + 5]

    def forward(self, x, near):
        x = self.middle(torch.tanh(self.inner(x)))
        left, right = self.windows(x, near)
        left.mul_(3.0)  # wrong
        return self.outer(left + right)


def make(start=2):
    torch.manual_seed(60)
    return Windows(start).eval(), (torch.randn(1, 6), False)


def again():
    torch.manual_seed(61)
    return torch.randn(1, 6), True


def smallest():
    @torch.compiler.disable
    def halves(x, start):
        return x[:4], x[start : start + 4]

    def step(x, start):
        left, right = halves(x, start)
        left.mul_(2.0)
        return left + right

    def both(x):
        return torch.stack([step(x.clone(), start) for start in (5, 1)])

    torch.manual_seed(60)
    return both, (torch.randn(9),)


BUG = TorchBug(
    issue="pytorch/pytorch#184481",
    kind="guards",
    make=make,
    smallest=smallest,
    operators="mul",
    near="add",
    harmless=lambda: make(6),
    again=again,
)
