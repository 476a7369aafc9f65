"""An average pooling with ceil_mode divides by the size of the whole window also where the border cuts it."""

import torch
from torch import nn
from torch.nn import functional as F

from museum._bug import TorchBug, rewrite


class Pooled(nn.Module):
    """Convolutions around a pooling whose last windows reach over the border."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 2)

    def forward(self, x):
        x = torch.relu(self.second(torch.tanh(self.first(x))))
        x = F.avg_pool2d(x, 3, 2, ceil_mode=True)  # wrong
        return self.last(x)


def make():
    torch.manual_seed(19)
    return Pooled().eval(), (torch.randn(1, 2, 8, 6),)


def smallest():
    torch.manual_seed(19)
    return (lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True)), (torch.randn(1, 1, 6, 6),)


def introduce():
    from torch._inductor import lowering

    rewrite(lowering._avg_poolnd, ("had_padding = True", "had_padding = any(padding)"))


BUG = TorchBug(
    issue="pytorch/pytorch#100987",
    kind="lowering",
    make=make,
    smallest=smallest,
    operators="avg_pool",
    near="relu|conv",
    introduce=introduce,
    switch="avg_pool",
)
