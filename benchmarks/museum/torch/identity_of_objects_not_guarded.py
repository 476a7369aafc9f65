"""A comparison by identity is taken for a constant: an attribute that points to another object later is not seen."""

import torch
from torch import nn

from museum._bug import TorchBug


class Choice:
    """One of two marks."""

    def __init__(self):
        self.smooth, self.sharp = object(), object()
        self.current = self.smooth


class Switched(nn.Module):
    """Chooses an activation by the identity of a mark."""

    def __init__(self, *, works=True):
        super().__init__()
        self.works, self.choice = works, Choice()
        self.inner, self.norm, self.outer = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)

    @torch.compiler.disable
    def choose(self, sharp):
        self.choice.current = self.choice.sharp if sharp and self.works else self.choice.smooth

    def forward(self, x, sharp):
        self.choose(sharp)
        x = self.norm(self.inner(x))
        x = torch.tanh(x) if self.choice.current is self.choice.smooth else torch.relu(x)  # wrong
        return self.outer(x)


def make(*, works=True):
    torch.manual_seed(83)
    return Switched(works=works).eval(), (torch.randn(3, 4), False)


def again():
    torch.manual_seed(84)
    return torch.randn(3, 4), True


def smallest():
    torch.manual_seed(83)
    model = Switched().eval()

    def both(x):
        return model(x, False) - model(x, True)

    return both, (torch.randn(2, 4),)


BUG = TorchBug(
    issue="pytorch/pytorch#196173",
    kind="guards",
    make=make,
    smallest=smallest,
    operators="tanh|relu",
    near="norm|linear|mm",
    harmless=lambda: make(works=False),
    again=again,
)
