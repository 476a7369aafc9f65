"""x + zeros is taken for x, but -0.0 + 0.0 is 0.0: a reciprocal after it has the other sign."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Steps(nn.Module):
    """Rounds up, shifts by an offset that is zero, and reads the sign of what is infinite."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        steps = torch.ceil(torch.tanh(self.inner(x)))
        shifted = steps + torch.zeros_like(steps)  # wrong
        return self.outer(torch.clamp(torch.reciprocal(shifted), -2, 2))


def make():
    torch.manual_seed(9)
    return Steps().eval(), (torch.randn(5, 4),)


def smallest():
    return (lambda x: torch.reciprocal(torch.ceil(x) + torch.zeros(6))), (torch.full((6,), -0.3),)


def repair():
    from torch._inductor.fx_passes import joint_graph

    rewrite(joint_graph.remove_no_ops, ("replacement = node.args[replace_input_index]", "return"))


BUG = TorchBug(
    issue="pytorch/pytorch#189799",
    kind="pattern",
    make=make,
    smallest=smallest,
    operators="add|zeros|full",
    near="ceil|reciprocal|clamp",
    repair=repair,
    switch="remove_no_ops|joint_graph|no_op",
)
