"""A symbolic size is not rounded by round(size, -1): compiled code works with the size itself."""

import torch
from torch import nn

from museum._bug import TorchBug


class Buckets(nn.Module):
    """Divides a sum over rows by their number, rounded to tens."""

    def __init__(self, digits):
        super().__init__()
        self.digits = digits
        self.inner, self.gate, self.outer = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        rows = torch.sigmoid(self.gate(self.inner(x)))
        mean = rows.sum(0) / round(x.shape[0], self.digits)  # wrong
        return self.outer(rows - mean)


def make(digits=-1):
    torch.manual_seed(52)
    return Buckets(digits).eval(), (torch.randn(13, 5),)


def again():
    torch.manual_seed(53)
    return (torch.randn(26, 5),)


def smallest():
    torch.manual_seed(52)
    return (lambda x: x * round(x.shape[0], -1)), (torch.randn(14),)


def prepare():
    from torch._dynamo import config

    config.assume_static_by_default = False


BUG = TorchBug(
    issue="pytorch/pytorch#198064",
    kind="dynamic shapes",
    make=make,
    smallest=smallest,
    operators="div|mul|round",
    near="sum|sub",
    prepare=prepare,
    harmless=lambda: make(0),
    again=again,
)
