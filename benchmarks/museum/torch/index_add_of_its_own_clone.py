"""Rows of a clone are added to the tensor it was cloned from, and the sum reads rows that were already changed."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Mirror(nn.Module):
    """Adds a table to itself, in another order."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate, self.outer = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.register_buffer("order", torch.tensor([4, 3, 2, 1, 0]))

    def forward(self, table, x):
        x = torch.relu(self.gate(torch.relu(self.inner(x))))
        table.index_add_(0, self.order, table.clone())  # wrong
        return self.outer(x * table)


def make():
    torch.manual_seed(48)
    return Mirror().eval(), (torch.randn(5, 8), torch.randn(5, 3))


def smallest():
    order = torch.tensor([2, 1, 0])

    def mirror(table):
        return table.index_add_(0, order, table.clone())

    torch.manual_seed(48)
    return mirror, (torch.randn(3, 4),)


def repair():
    from torch._inductor.fx_passes import post_grad

    kept = "if node.target in (aten.copy.default, aten.clone.default):\n                continue\n            "
    rewrite(post_grad.remove_noop_ops, ("if same_meta(node, src) and", f"{kept}if same_meta(node, src) and"))


BUG = TorchBug(
    issue="pytorch/pytorch#197829",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="index_add|index_put|clone",
    near="mul|copy",
    repair=repair,
    switch="noop|reinplace",
)
