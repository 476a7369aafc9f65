"""A scale factor is written to a symbolic size with fifteen digits, and rounds to a size that is one too small."""

import torch
import torch.nn.functional as F
from torch import nn

from museum._bug import TorchBug, rewrite


class Pooled(nn.Module):
    """Resamples a signal to a three hundredth of its length."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Conv1d(1, 2, 1), nn.BatchNorm1d(2), nn.Conv1d(2, 1, 1)

    def forward(self, x):
        x = torch.tanh(self.norm(self.inner(x)))
        x = F.interpolate(x, scale_factor=1 / 300, mode="linear")  # wrong
        return self.outer(x)


def make():
    torch.manual_seed(73)
    return Pooled().eval(), (torch.randn(1, 1, 1200),)


def again():
    torch.manual_seed(74)
    return (torch.randn(1, 1, 2400),)


def smallest():
    torch.manual_seed(73)
    return (lambda x: F.interpolate(x, scale_factor=1 / 300, mode="nearest")), (torch.randn(1, 1, 900),)


def prepare():
    from torch._dynamo import config

    config.assume_static_by_default = False


def introduce():
    from torch.utils._sympy.printers import ExprPrinter

    rewrite(ExprPrinter._print_Float, ("dps=17", "dps=15"))


BUG = TorchBug(
    issue="pytorch/pytorch#147261",
    kind="dynamic shapes",
    make=make,
    smallest=smallest,
    operators="upsample|interpolate",
    near="conv|tanh|index",
    prepare=prepare,
    introduce=introduce,
    again=again,
)
