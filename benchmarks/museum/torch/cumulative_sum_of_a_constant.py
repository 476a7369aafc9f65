"""A cumulative sum of a constant becomes multiples of it, in its dtype: the dtype that is asked for is lost."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Positions(nn.Module):
    """Numbers the places of a row in whole numbers, from a step that isn't whole."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.outer = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        places = torch.full((2, 9), 1.5).cumsum(1, dtype=torch.int64)  # wrong
        x = self.second(torch.relu(self.first(x)))
        return self.outer(torch.tanh(x + places.unsqueeze(-1) / 9))


def make():
    torch.manual_seed(6)
    return Positions().eval(), (torch.randn(2, 9, 4),)


def smallest():
    return (lambda x: x * torch.full((5,), 2.75).cumsum(0, dtype=torch.int32)), (torch.ones(5),)


def repair():
    from torch._inductor.fx_passes import post_grad

    rewrite(
        post_grad.pointless_cumsum_replacement,
        (
            "    if is_integer_dtype(dtype)",
            "    if match.output_node().kwargs:\n        return\n    if is_integer_dtype(dtype)",
        ),
    )


BUG = TorchBug(
    issue="pytorch/pytorch#189518",
    kind="pattern",
    make=make,
    smallest=smallest,
    operators="cumsum|full|arange",
    near="mul|add|div|unsqueeze",
    repair=repair,
    switch="cumsum|post_grad|pattern_matcher",
)
