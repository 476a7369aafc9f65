"""The sum of two bytes is an int in C++ and doesn't wrap around before it is widened."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Bright(nn.Module):
    """Scales a row by a level that wraps around like a byte."""

    def __init__(self):
        super().__init__()
        self.inner, self.middle, self.outer = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x, level):
        doubled = level + level  # wrong
        x = self.middle(torch.relu(self.inner(x)))
        return self.outer(x * (doubled.to(torch.int16) / 64))


def make():
    torch.manual_seed(23)
    return Bright().eval(), (torch.randn(4, 3), torch.tensor(144, dtype=torch.uint8))


def smallest():
    return (lambda level: (level + level).to(torch.int16)), (torch.tensor(130, dtype=torch.uint8),)


def introduce():
    from torch._inductor.codegen import cpp

    rewrite(cpp.CppOverrides.add, ("{decltype_promoted(a, b)}({a} + {b})", "{a} + {b}"))


BUG = TorchBug(
    issue="pytorch/pytorch#105264",
    kind="generated code",
    make=make,
    smallest=smallest,
    operators="add|int16|convert_element_type|_to_copy|^to$",
    near="div|mul",
    introduce=introduce,
)
