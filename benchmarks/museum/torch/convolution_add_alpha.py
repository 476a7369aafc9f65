"""Freezing fuses a convolution and a sum behind it into one oneDNN operation, which knows no alpha."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Blocks(nn.Module):
    """Adds a tenth of the input of a convolution to its output."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (
            nn.Conv2d(2, 6, 1),
            nn.Conv2d(6, 6, 3, padding=1, bias=False),
            nn.Conv2d(6, 3, 2),
        )

    def forward(self, x):
        x = torch.tanh(self.first(x))
        x = torch.add(self.second(x), x, alpha=0.1)  # wrong
        return self.last(torch.sigmoid(x))


class One(nn.Module):
    """A convolution and a sum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return torch.add(self.conv(x), x, alpha=0.1)


def make():
    torch.manual_seed(12)
    return Blocks().eval().requires_grad_(False), (torch.randn(1, 2, 7, 9),)


def smallest():
    torch.manual_seed(12)
    return One().eval().requires_grad_(False), (torch.randn(1, 4, 5, 5),)


def prepare():
    from torch._inductor import config

    config.freezing = True


def introduce():
    from torch._inductor.fx_passes import mkldnn_fusion

    rewrite(mkldnn_fusion._is_valid_binary, ('get_arg_value(n, 2, kwarg_name="alpha") != 1.0', "False"))


BUG = TorchBug(
    issue="pytorch/pytorch#122382",
    kind="pattern",
    make=make,
    smallest=smallest,
    operators="add|conv",
    near="sigmoid",
    prepare=prepare,
    introduce=introduce,
    switch="mkldnn|freezing|onednn|pattern_matcher",
)
