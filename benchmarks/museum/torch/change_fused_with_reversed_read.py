"""A kernel writes to an input while it still reads it in another order.

The dependency that keeps the two apart is dropped between two rounds of fusion, because another one has the same ends.
"""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Reversed(nn.Module):
    """Turns a history around in place."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, history, x):
        x = self.norm(torch.relu(self.inner(x)))
        turned = history.flip(0) * 0.5
        history.copy_(turned + 1.0)  # wrong
        return self.outer(x + turned)


def make():
    torch.manual_seed(72)
    return Reversed().eval(), (torch.randn(32, 6), torch.randn(32, 4))


def smallest():
    def turn(x):
        return x.copy_(x.flip(0)) * 2

    torch.manual_seed(72)
    return turn, (torch.randn(64),)


def introduce():
    from torch._inductor import scheduler

    asked = (
        " and node.scheduler.fusable_weak_dep(\n                dep, name_to_fused_node[op_name], node\n            )"
    )
    rewrite(scheduler._prune_redundant_deps, (asked, ""))


BUG = TorchBug(
    issue="pytorch/pytorch#162316",
    kind="scheduling and memory",
    make=make,
    smallest=smallest,
    operators="copy|flip",
    near="mul|add",
    introduce=introduce,
)
