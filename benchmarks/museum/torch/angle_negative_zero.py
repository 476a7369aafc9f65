"""The angle of a complex number is decomposed to atan2, and a constant -0.0 in it becomes 0.0: the angle 0, not pi."""

import torch
from torch import nn

from museum._bug import TorchBug


class Phases(nn.Module):
    """Reads the phases of a spectrum, the first number of which is replaced."""

    def __init__(self, first=complex(-0.0, 0.0)):
        super().__init__()
        self.inner, self.outer, self.first = nn.Linear(4, 6), nn.Linear(3, 2), first

    def forward(self, x):
        spectrum = torch.view_as_complex(self.inner(x).view(-1, 3, 2))
        spectrum[:, 0] = self.first
        phases = torch.angle(spectrum)  # wrong
        return self.outer(phases)


def make():
    torch.manual_seed(3)
    return Phases().eval(), (torch.randn(5, 4),)


def harmless():
    torch.manual_seed(3)
    return Phases(complex(-1.5, 0.25)).eval(), (torch.randn(5, 4),)


def smallest():
    def phase(x):
        x = x.clone()
        x[0] = complex(-0.0, 0.0)
        return torch.angle(x)

    return phase, (torch.tensor([1 + 2j, 2 - 1j]),)


BUG = TorchBug(
    issue="pytorch/pytorch#197586",
    kind="decomposition",
    make=make,
    smallest=smallest,
    operators="angle|atan2",
    near="copy|fill|where|select|full",
    harmless=harmless,
)
