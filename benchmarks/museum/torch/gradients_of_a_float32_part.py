"""Where autocast is switched off for a part, its gradients still follow the autocast around it: bfloat16."""

import torch
from torch import nn
from torch.nn import functional as F

from museum._bug import TorchBug


class Precise(nn.Module):
    """Three layers in float32, whatever is around them."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            x = F.gelu(self.first(x))
            x = torch.tanh(self.second(x))  # wrong
            return self.last(x)


class Around(nn.Module):
    """Runs a module under autocast; itself not compiled."""

    def __init__(self, inner, on):
        super().__init__()
        self.inner, self.on = inner, on

    @torch.compiler.disable(recursive=False)
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.on):
            return self.inner(x)


class One(nn.Module):
    """One layer in float32."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.layer(x)


def make():
    torch.manual_seed(29)
    return Around(Precise(), True), (torch.randn(6, 8, requires_grad=True),)


def harmless():
    torch.manual_seed(29)
    return Around(Precise(), False), (torch.randn(6, 8, requires_grad=True),)


def smallest():
    torch.manual_seed(29)
    return Around(One(), True), (torch.randn(6, 16, requires_grad=True),)


BUG = TorchBug(
    issue="pytorch/pytorch#179804",
    kind="autocast",
    make=make,
    smallest=smallest,
    operators="linear|mm|matmul",
    near="tanh|gelu",
    harmless=harmless,
    backward=True,
)
