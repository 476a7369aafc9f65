"""Floor division of floating-point numbers rounds the quotient first: 1.0 // 0.1 is 10, where eager PyTorch says 9."""

import torch
from torch import nn

from museum._bug import TorchBug


class Bins(nn.Module):
    """Looks up what belongs to the bin of a number."""

    def __init__(self):
        super().__init__()
        self.table, self.inner, self.outer = nn.Embedding(40, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x, width):
        bins = torch.floor_divide(x, width)  # wrong
        return self.outer(torch.relu(self.inner(self.table(bins.long()))))


def make():
    torch.manual_seed(14)
    return Bins().eval(), (torch.tensor([1.0, 0.5, 6.0, 0.33, 2.26]), torch.tensor([0.1, 0.1, 0.2, 0.2, 0.7]))


def harmless():
    torch.manual_seed(14)
    return Bins().eval(), (torch.tensor([1.0, 0.5, 6.0, 0.33, 2.26]), torch.tensor([0.25, 0.3, 0.75, 0.2, 0.7]))


def smallest():
    return (lambda x, y: x // y), (torch.tensor([1.0, 0.5]), torch.tensor([0.1, 0.1]))


BUG = TorchBug(
    issue="pytorch/pytorch#197895",
    kind="lowering",
    make=make,
    smallest=smallest,
    operators="floor|div",
    near="embedding|long|to|convert",
    harmless=harmless,
    switch="div",
)
