"""A cast to float16 and back is left out of a kernel: the numbers keep digits that half precision doesn't have."""

import torch
from torch import nn

from museum._bug import TorchBug


class Compressed(nn.Module):
    """Compares numbers with what half precision keeps of them."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        large = 2048 + torch.sigmoid(self.inner(x))
        kept = large.to(torch.float16).to(torch.float32)  # wrong
        return self.outer(kept - 2048)


def make():
    torch.manual_seed(22)
    return Compressed().eval(), (torch.randn(4, 3),)


def smallest():
    return (lambda x: x.half().float() - 1024), (torch.linspace(1024, 1025, 9),)


def repair():
    from torch._inductor import config

    config.emulate_precision_casts = True


BUG = TorchBug(
    issue="pytorch/pytorch#185337",
    kind="generated code",
    make=make,
    smallest=smallest,
    operators="to|half|float|convert_element_type|_to_copy",
    near="sub|add|sigmoid",
    repair=repair,
    switch="emulate_precision_casts",
)
