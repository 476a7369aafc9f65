"""The C++ compiler simplifies the sine of an arc tangent to a formula that returns 1 for NaN."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Squashed(nn.Module):
    """Squashes a number that is not one for some rows."""

    def __init__(self):
        super().__init__()
        self.inner, self.middle, self.outer = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(1, 2)

    def forward(self, x):
        x = torch.rsqrt(self.middle(torch.relu(self.inner(x))) - 10)
        x = torch.sin(torch.atan(x))  # wrong
        return self.outer(x)


def make():
    torch.manual_seed(26)
    return Squashed().eval(), (torch.randn(1, 3),)


def smallest():
    return (lambda x: torch.sin(torch.atan(x))), (torch.tensor([float("nan")]),)


def introduce():
    from torch._inductor import cpp_builder

    rewrite(cpp_builder._get_ffast_math_flags, ('"fmath-errno"', '"fno-math-errno"'))


BUG = TorchBug(
    issue="pytorch/pytorch#186018",
    kind="generated code",
    make=make,
    smallest=smallest,
    operators="sin|atan",
    near="rsqrt",
    introduce=introduce,
)
