"""A negated byte is a negative int in C++, and less than every byte that it is compared with."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Selected(nn.Module):
    """Selects one of two projections by a negated byte."""

    def __init__(self):
        super().__init__()
        self.low, self.high, self.outer = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x, code):
        flipped = -code  # wrong
        return self.outer(torch.where(flipped < 100, self.low(x), self.high(x)))


def make():
    torch.manual_seed(24)
    return Selected().eval(), (torch.randn(3, 5), torch.tensor([9], dtype=torch.uint8))


def smallest():
    return (lambda code: ((-code) < 100).float()), (torch.tensor([9], dtype=torch.uint8),)


def introduce():
    from torch._inductor.codegen import cpp

    rewrite(cpp.CppOverrides.neg, ("decltype({x})(-{x})", "-{x}"))


BUG = TorchBug(
    issue="pytorch/pytorch#93829",
    kind="generated code",
    make=make,
    smallest=smallest,
    operators="neg",
    near="lt|where",
    introduce=introduce,
)
