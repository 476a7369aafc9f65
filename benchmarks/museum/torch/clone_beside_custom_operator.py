"""A custom operator that writes to a tensor gets that tensor twice, instead of a clone of it and the tensor.

The clone is removed as an operator without effect, and then the operator is made to work in place.
"""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


@torch.library.custom_op("museum::running_sum", mutates_args=("target",))
def running_sum(source: torch.Tensor, target: torch.Tensor) -> None:
    for k in range(1, source.shape[0]):
        target[k] = source[k] + source[k - 1]


class Pairs(nn.Module):
    """Adds to each row of a table the row before."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, table, x):
        x = torch.tanh(self.norm(self.inner(x)))
        running_sum(table.clone(), table)  # wrong
        return self.outer(x + table)


def make():
    torch.manual_seed(47)
    return Pairs().eval(), (torch.randn(5, 6), torch.randn(5, 4))


def smallest():
    def pairs(table):
        running_sum(table.clone(), table)
        return table * 2

    torch.manual_seed(47)
    return pairs, (torch.randn(6),)


def repair():
    from torch._inductor.fx_passes import post_grad

    kept = "if node.target in (aten.copy.default, aten.clone.default):\n                continue\n            "
    rewrite(post_grad.remove_noop_ops, ("if same_meta(node, src) and", f"{kept}if same_meta(node, src) and"))


BUG = TorchBug(
    issue="pytorch/pytorch#198031",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="running_sum|auto_functionalized|clone",
    near="add|mul|copy",
    repair=repair,
    switch="noop|reinplace",
)
