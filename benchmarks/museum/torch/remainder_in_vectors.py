"""A vectorized remainder is x - floor(x / y) * y: NaN for an infinite divisor, and 0 where the quotient is large."""

import torch
from torch import nn

from museum._bug import TorchBug


class Wrapped(nn.Module):
    """Wraps numbers around periods, some of which are infinite: those numbers stay."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x, periods):
        x = torch.exp(self.inner(x))
        x = torch.remainder(x, periods)  # wrong
        return self.outer(x)


def make():
    torch.manual_seed(21)
    return Wrapped().eval(), (torch.randn(2, 4), torch.tensor([float("inf"), 0.5] * 8))


def harmless():
    torch.manual_seed(21)
    return Wrapped().eval(), (torch.randn(2, 4), torch.tensor([64.0, 0.5] * 8))


def smallest():
    return torch.remainder, (torch.linspace(0.5, 9, 16), torch.full((16,), float("inf")))


BUG = TorchBug(
    issue="pytorch/pytorch#198057",
    kind="generated code",
    make=make,
    smallest=smallest,
    operators="remainder|fmod",
    near="exp",
    harmless=harmless,
)
