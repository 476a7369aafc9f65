"""A change in place through windows that leave gaps sets the tensor to zero between the windows.

Functionalization rebuilds the tensor from its windows alone.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Frames(nn.Module):
    """Turns the sign of two of five features, by a window over them."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.encode, self.mix, self.decode = nn.Linear(7, 20), nn.Linear(20, 9), nn.Linear(9, 4)

    def forward(self, x):
        x = torch.sigmoid(self.encode(x))
        frames = x.unfold(-1, self.size, 5)
        frames.neg_()  # wrong
        return self.decode(torch.tanh(self.mix(x)))


def make(size=2):
    torch.manual_seed(41)
    return Frames(size).eval(), (torch.randn(6, 7),)


def smallest():
    def flip(x):
        x = x + 1
        x.unfold(0, 1, 3).neg_()
        return x

    torch.manual_seed(41)
    return flip, (torch.randn(7),)


BUG = TorchBug(
    issue="pytorch/pytorch#198102",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="unfold",
    near="neg",
    harmless=lambda: make(5),
)
