"""x * ones is taken for x where x is changed in place later: the product holds the numbers after the change."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Trace(nn.Module):
    """Reads a state before it decays in place."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x, state):
        before = state * torch.ones(6)  # wrong
        state.mul_(0.5).add_(torch.relu(self.inner(x)))
        return self.outer(state), before


def make():
    torch.manual_seed(10)
    return Trace().eval(), (torch.randn(2, 4), torch.randn(2, 6))


def smallest():
    def before(state):
        old = state * torch.ones(4)
        state.add_(1)
        return old

    return before, (torch.arange(4.0),)


def introduce():
    from torch._inductor.fx_passes import joint_graph

    rewrite(joint_graph.remove_no_ops, ("if is_mutated(replacement):", "if False:"))


BUG = TorchBug(
    issue="pytorch/pytorch#174187",
    kind="pattern",
    make=make,
    smallest=smallest,
    operators="mul|ones|full|copy",
    near="add|linear|addmm",
    introduce=introduce,
    switch="remove_no_ops|joint_graph|no_op",
)
