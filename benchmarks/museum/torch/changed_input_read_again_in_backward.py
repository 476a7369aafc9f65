"""The backward pass computes a value again from an input that the forward pass has changed in the meantime.

The partitioner saves the input instead of the value, although the change comes after the value was computed.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Statistics(nn.Module):
    """Scales features by a running state, and updates the state."""

    def __init__(self, *, update=True):
        super().__init__()
        self.update = update
        self.inner, self.norm, self.outer = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x, state):
        x = torch.tanh(self.norm(self.inner(x)))
        x = x * torch.exp(-state)  # wrong
        if self.update:
            state.add_(1.0)
        return self.outer(x)


def make(*, update=True):
    torch.manual_seed(58)
    return Statistics(update=update), (torch.randn(5, 6, requires_grad=True), torch.rand(8))


def smallest():
    def scaled(x, state):
        y = x * state.cos()
        state.mul_(2.0)
        return y

    torch.manual_seed(58)
    return scaled, (torch.randn(4, requires_grad=True), torch.randn(4))


BUG = TorchBug(
    issue="pytorch/pytorch#197039",
    kind="backward",
    make=make,
    smallest=smallest,
    operators="exp|cos|neg",
    near="mul|add",
    harmless=lambda: make(update=False),
    backward=True,
)
