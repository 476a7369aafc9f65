"""The pass decompose_mm_pass turns addmm into products and a sum, and forgets alpha and beta."""

import torch
from torch import nn

from museum._bug import TorchBug


class Leaky(nn.Module):
    """Mixes half of a state with twice a projection of one row."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(7, 40), nn.Linear(32, 4)
        self.weight = nn.Parameter(torch.randn(40, 32) / 6)

    def forward(self, x, state):
        row = torch.relu(self.inner(x))
        mixed = torch.addmm(state, row, self.weight, beta=0.5, alpha=2)  # wrong
        return self.outer(torch.tanh(mixed))


def make():
    torch.manual_seed(7)
    return Leaky().eval(), (torch.randn(1, 7), torch.randn(32))


def smallest():
    torch.manual_seed(7)
    return (lambda s, a, b: torch.addmm(s, a, b, beta=0.5, alpha=2)), (
        torch.randn(24),
        torch.randn(1, 30),
        torch.randn(30, 24),
    )


def prepare():
    from torch._inductor import config

    config.post_grad_fusion_options = {"decompose_mm_pass": {}}


def repair():
    from torch._inductor import config

    config.post_grad_fusion_options = {}


BUG = TorchBug(
    issue="pytorch/pytorch#196577",
    kind="pattern",
    make=make,
    smallest=smallest,
    operators="addmm|sum|mul|add",
    near="tanh|linear",
    prepare=prepare,
    repair=repair,
    switch="decompose_mm_pass|decompose_addmm|post_grad",
)
