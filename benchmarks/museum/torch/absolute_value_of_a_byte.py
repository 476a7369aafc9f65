"""std::abs of a byte is an int in C++: what is computed from it doesn't wrap around."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Levels(nn.Module):
    """Adds up negated bytes, which wrap around, and scales a row by the sum."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x, levels):
        flipped = -levels.abs()  # wrong
        total = torch.cat([flipped, flipped]).sum()
        return self.outer(torch.tanh(self.inner(x)) * (total / 100))


def make():
    torch.manual_seed(20)
    return Levels().eval(), (torch.randn(3, 4), torch.tensor([200, 180], dtype=torch.uint8))


def smallest():
    def total(levels):
        flipped = -levels.abs()
        return torch.cat([flipped, flipped]).sum()

    return total, (torch.tensor([200, 180], dtype=torch.uint8),)


def repair():
    from torch._inductor.codegen import cpp

    rewrite(cpp.CppOverrides.abs, ('f"std::abs({x})"', 'f"static_cast<decltype({x})>(std::abs({x}))"'))


BUG = TorchBug(
    issue="pytorch/pytorch#187018",
    kind="generated code",
    make=make,
    smallest=smallest,
    operators="abs|neg",
    near="cat|sum",
    repair=repair,
)
