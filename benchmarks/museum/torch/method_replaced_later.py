"""A method whose code is replaced after the first call is still run with the old code in the second one."""

import torch
from torch import nn

from museum._bug import TorchBug


def plain(self, x):
    return x * 0.5


def squared(self, x):
    return x * x


class Activation:
    """An activation whose method changes."""

    def run(self, x):
        return x * 0.5


class Patched(nn.Module):
    """Replaces the code of its activation if it is asked to."""

    def __init__(self, *, replacement=squared):
        super().__init__()
        self.activation, self.replacement = Activation(), replacement
        self.inner, self.norm, self.outer = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)

    @torch.compiler.disable
    def patch(self, wanted):
        Activation.run.__code__ = (self.replacement if wanted else plain).__code__

    def forward(self, x, wanted):
        self.patch(wanted)
        x = self.norm(self.inner(x))
        x = self.activation.run(x)  # wrong
        return self.outer(x)


def make(*, replacement=squared):
    torch.manual_seed(64)
    return Patched(replacement=replacement).eval(), (torch.randn(3, 4), False)


def again():
    torch.manual_seed(65)
    return torch.randn(3, 4), True


def smallest():
    torch.manual_seed(64)
    model = Patched().eval()

    def both(x):
        return model(x, False) - model(x, True)

    return both, (torch.randn(2, 4),)


BUG = TorchBug(
    issue="pytorch/pytorch#198124",
    kind="guards",
    make=make,
    smallest=smallest,
    operators="mul|pow",
    near="linear|mm|norm",
    harmless=lambda: make(replacement=plain),
    again=again,
)
