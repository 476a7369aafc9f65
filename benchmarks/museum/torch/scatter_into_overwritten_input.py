"""A scatter into a copy of an input is done in the input itself, which is overwritten before the copy is read.

The pass that makes operators work in place takes any later change of the input for a reason to do so.
"""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Memory(nn.Module):
    """Reads a memory with one new row, and clears the old one."""

    def __init__(self):
        super().__init__()
        self.write, self.norm, self.read = nn.Linear(8, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, memory, x):
        row = self.norm(self.write(x))
        fresh = torch.select_scatter(memory, row, 0, 2)  # wrong
        memory.fill_(0.25)
        return self.read(fresh), fresh


def make():
    torch.manual_seed(42)
    return Memory().eval(), (torch.randn(6, 5), torch.randn(8))


def smallest():
    def swap(x, row):
        fresh = torch.select_scatter(x, row, 0, 1)
        x.fill_(3.0)
        return fresh

    torch.manual_seed(42)
    return swap, (torch.randn(4, 2), torch.randn(2))


def repair():
    from torch._inductor.fx_passes import reinplace

    head = "def should_reinplace_scatter(node: torch.fx.Node) -> bool:\n"
    rewrite(reinplace.should_reinplace_scatter, (head, f"{head}    return False\n"))


BUG = TorchBug(
    issue="pytorch/pytorch#198094",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="scatter",
    near="select|mul|copy|fill",
    repair=repair,
    switch="reinplace",
)
