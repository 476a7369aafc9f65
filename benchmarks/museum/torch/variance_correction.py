"""A variance from which more degrees of freedom are taken than there are elements is negative.

Eager PyTorch divides by the larger one of that difference and 0, and returns infinity.
"""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Scaled(nn.Module):
    """Scales rows of three by how much they vary."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x):
        rows = self.inner(x).view(-1, 3, 4)
        spread = torch.var(rows, -1, correction=5, keepdim=True)  # wrong
        return self.outer((rows / (spread + 1.0)).view(-1, 12))


def make():
    torch.manual_seed(14)
    return Scaled().eval(), (torch.randn(5, 8),)


def smallest():
    torch.manual_seed(14)
    return (lambda x: 1 / (1 + torch.var(x, -1, correction=5))), (torch.randn(3, 4),)


def introduce():
    from torch._inductor import lowering

    rewrite(lowering.var_mean_sum_, ("denom = Max(denom - correction, 0)", "denom = denom - correction"))
    rewrite(lowering.var_mean_welford_, ("data / ops.maximum(zero, N - c)", "data / (N - c)"))


BUG = TorchBug(
    issue="pytorch/pytorch#113167",
    kind="lowering",
    make=make,
    smallest=smallest,
    operators="var|welford",
    near="div|add",
    introduce=introduce,
)
