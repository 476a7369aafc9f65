"""A shift of a tensor within itself becomes one loop that writes each element before it is read."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Delay(nn.Module):
    """Moves a delay line by one row, and weighs the result."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate, self.outer = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, line, x):
        x = torch.sigmoid(self.gate(torch.relu(self.inner(x))))
        line[1:] = line[:-1] * 0.75  # wrong
        return self.outer(line * x)


def make():
    torch.manual_seed(75)
    return Delay().eval(), (torch.randn(16, 8), torch.randn(16, 3))


def smallest():
    def shift(x):
        x[1:] = x[:-1] * 2
        return x + 0.5

    torch.manual_seed(75)
    return shift, (torch.randn(16),)


def introduce():
    from torch._inductor.scheduler import Scheduler

    rewrite(Scheduler.fusable_weak_dep, ("and read.index == write.index\n", ""))


BUG = TorchBug(
    issue="pytorch/pytorch#118210",
    kind="scheduling and memory",
    make=make,
    smallest=smallest,
    operators="copy|slice|mul",
    near="add|sigmoid",
    introduce=introduce,
)
