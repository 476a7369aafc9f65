"""ldexp of half-precision numbers and float32 exponents is computed in half precision and overflows."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Rescaled(nn.Module):
    """Puts mantissas in half precision together with exponents."""

    def __init__(self):
        super().__init__()
        self.exponents, self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.full((6,), 1e-6))

    def forward(self, x, mantissas):
        exponents = 14 + torch.round(torch.tanh(self.exponents(x)))
        numbers = torch.ldexp(mantissas, exponents)  # wrong
        return self.outer(torch.sigmoid(self.inner(numbers * self.scale))), numbers


def make():
    torch.manual_seed(16)
    return Rescaled().eval(), (torch.randn(5, 4), torch.randn(5, 6).half() * 60)


def smallest():
    return torch.ldexp, (torch.tensor([3.5, -90.0]).half(), torch.tensor([15.0, 14.0]))


def repair():
    from torch._inductor import lowering

    rewrite(
        lowering.ldexp_lowering,
        ("torch.float32 if is_integer_type(x) else x_dtype", "torch.promote_types(x_dtype, n_dtype)"),
        (
            "def compute_fallback",
            "x, n = to_dtype(x, out_dtype), to_dtype(n, out_dtype)\n\n        def compute_fallback",
        ),
    )


BUG = TorchBug(
    issue="pytorch/pytorch#197091",
    kind="lowering",
    make=make,
    smallest=smallest,
    operators="ldexp|pow|mul",
    near="add|round|tanh",
    repair=repair,
    switch="ldexp",
)
