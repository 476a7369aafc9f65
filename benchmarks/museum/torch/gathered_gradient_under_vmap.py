"""The gradient of index_select under vmap is added up in one zero that stands for the whole batch.

The pass that makes operators work in place writes to the expanded tensor: each row gets the sum over the batch.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Forces(nn.Module):
    """Moves points along the gradient of an energy of some of their coordinates."""

    def __init__(self):
        super().__init__()
        self.place, self.weigh, self.out = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.register_buffer("chosen", torch.tensor([1, 4, 5]))

    def energy(self, point):
        parts = torch.stack([point[k] for k in range(6)], -1)
        picked = torch.index_select(parts, -1, self.chosen)  # wrong
        return (picked * 1.5).sum()

    def forward(self, x):
        points = self.weigh(torch.tanh(self.place(x)))
        return self.out(points - torch.func.vmap(torch.func.grad(self.energy))(points))


def make():
    torch.manual_seed(43)
    return Forces().eval().requires_grad_(False), (torch.randn(7, 5),)


def smallest():
    chosen = torch.tensor([0, 3])

    def energy(point):
        return torch.index_select(torch.stack([point[k] for k in range(4)], -1), -1, chosen).sum()

    torch.manual_seed(43)
    return torch.func.vmap(torch.func.grad(energy)), (torch.randn(3, 4),)


def repair():
    from torch._inductor.fx_passes import post_grad, reinplace

    reinplace.reinplace_inplaceable_ops = post_grad.reinplace_inplaceable_ops = lambda *_, **__: None


BUG = TorchBug(
    issue="pytorch/pytorch#188084",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="index_put|index_select|index_add",
    near="expand|stack|select|full|zeros",
    repair=repair,
    switch="reinplace",
)
