"""torch.any of bytes has the dtype bool instead of uint8, so that arithmetic behind it doesn't wrap around."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Flags(nn.Module):
    """Weights rows by a byte that wraps around where a flag is set."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x, flags):
        found = torch.any(flags, 1, keepdim=True)  # wrong
        levels = found * 200 + 100
        return self.outer(torch.tanh(self.inner(x)) * (levels.float() / 100))


def make():
    torch.manual_seed(13)
    return Flags().eval(), (torch.randn(4, 4), torch.tensor([[0, 3], [0, 0], [7, 1], [0, 255]], dtype=torch.uint8))


def smallest():
    return (lambda flags: torch.any(flags) * 200 + 100), (torch.tensor([0, 5, 0], dtype=torch.uint8),)


def repair():
    from torch._inductor import lowering

    rewrite(
        lowering.reduce_any,
        ("x = to_dtype(x, torch.bool)", "dtype = x.get_dtype()\n    x = to_dtype(x, torch.bool)"),
        ("return make_reduction", "found = make_reduction"),
        ("keepdim)", "keepdim)\n    return to_dtype(found, dtype) if dtype == torch.uint8 else found"),
    )


BUG = TorchBug(
    issue="pytorch/pytorch#198081",
    kind="lowering",
    make=make,
    smallest=smallest,
    operators="any",
    near="mul|add|to|convert",
    repair=repair,
    switch="any",
)
