"""Random integers are unsigned in the generated code: a right shift of a negative one gives a large number."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Shifted(nn.Module):
    """Moves a row by a random integer of which only the sign bits are left; it is always -1."""

    def __init__(self):
        super().__init__()
        self.inner, self.middle, self.outer = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        sign = torch.randint(-1, 0, (1,)) >> 40  # wrong
        x = self.middle(torch.relu(self.inner(x)))
        return self.outer(torch.tanh(x + sign))


def make():
    torch.manual_seed(32)
    return Shifted().eval(), (torch.randn(3, 4),)


def smallest():
    return (lambda x: x + (torch.randint(-1, 0, (1,)) >> 31)), (torch.zeros(2),)


def introduce():
    from torch._inductor.codegen import cpp

    drawn = "randint64_cpu({seed}, {offset}, {low}, {high})"
    rewrite(cpp.CppOverrides.randint64, (drawn, f"static_cast<uint64_t>({drawn})"))


BUG = TorchBug(
    issue="pytorch/pytorch#127310",
    kind="random",
    make=make,
    smallest=smallest,
    operators="randint|shift",
    near="add|tanh",
    introduce=introduce,
)
