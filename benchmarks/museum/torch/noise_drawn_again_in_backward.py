"""With a small memory budget the backward pass draws the noise of the forward pass again, and draws other noise."""

import torch
from torch import nn

from museum._bug import TorchBug


class Noisy(nn.Module):
    """Multiplies features by uniform noise while it trains."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 3)

    def forward(self, x):
        x = torch.tanh(self.norm(self.first(x)))
        x = x * torch.rand_like(x)  # wrong
        return self.last(x)


def make():
    torch.manual_seed(44)
    return Noisy(), (torch.randn(5, 6, requires_grad=True),)


def smallest():
    torch.manual_seed(44)
    return (lambda x: x.cos() * torch.rand_like(x)), (torch.randn(16, requires_grad=True),)


def prepare():
    from torch._functorch import config as functorch
    from torch._inductor import config

    functorch.activation_memory_budget = 0.0
    config.fallback_random = True


def repair():
    from torch._functorch import config

    config.activation_memory_budget = 1.0


BUG = TorchBug(
    issue="pytorch/pytorch#190758",
    kind="random",
    make=make,
    smallest=smallest,
    operators="rand",
    near="mul",
    prepare=prepare,
    repair=repair,
    backward=True,
)
