"""Nearest interpolation with a scale of 1.3 resamples three rows into three rows, which eager PyTorch leaves alone."""

import torch
from torch import nn
from torch.nn import functional as F

from museum._bug import TorchBug, rewrite


class Enlarged(nn.Module):
    """Convolutions around an interpolation that makes an image wider, and no higher."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 3, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 2, 2)

    def forward(self, x):
        x = torch.tanh(self.second(torch.relu(self.first(x))))
        x = F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest")  # wrong
        return self.last(x)


def make():
    torch.manual_seed(15)
    return Enlarged().eval(), (torch.randn(2, 1, 3, 4),)


def smallest():
    return (lambda x: F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest")), (torch.arange(12.0).view(1, 1, 3, 4),)


def repair():
    from torch._decomp import decompositions

    rewrite(
        decompositions._compute_upsample_nearest_indices, ("and scales[d] > 0", "and scales[d] > 0 and isize != osize")
    )


BUG = TorchBug(
    issue="pytorch/pytorch#198201",
    kind="decomposition",
    make=make,
    smallest=smallest,
    operators="upsample|interpolate|nearest|index",
    near="tanh|conv",
    repair=repair,
    switch="upsample_nearest",
)
