"""An input times ones is returned as the input itself, so that a change of the result changes the input.

The pass over the joint graph that removes such products does not ask whether the result leaves the graph.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Residual(nn.Module):
    """Adds an update to a weighted copy of the input, and keeps the input."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        update = self.outer(self.norm(torch.relu(self.inner(x))))
        total = x * torch.ones(4, 5)  # wrong
        torch._dynamo.graph_break()
        total.add_(update)
        return torch.cat([x, total])


def make():
    torch.manual_seed(59)
    return Residual().eval(), (torch.randn(4, 5),)


def smallest():
    def doubled(x):
        y = x * torch.ones(3)
        torch._dynamo.graph_break()
        return y.mul_(2.0)

    torch.manual_seed(59)
    return doubled, (torch.randn(3),)


def repair():
    from torch._inductor.fx_passes import joint_graph

    joint_graph.remove_no_ops = lambda *_: None


BUG = TorchBug(
    issue="pytorch/pytorch#197893",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="mul|ones|full",
    near="add|cat",
    repair=repair,
    switch="no_op|joint|constant",
)
