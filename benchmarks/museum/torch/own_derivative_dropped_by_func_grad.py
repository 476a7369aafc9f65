"""torch.func.grad of a function with a derivative of its own ignores that derivative when it is compiled."""

import torch
from torch import nn

from museum._bug import TorchBug


class Halved(torch.autograd.Function):
    """A cube, with half of its derivative."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.5 * ctx.saved_tensors[0] ** 2


class Cube(Halved):
    """A cube, with its derivative."""

    @staticmethod
    def backward(ctx, grad):
        return grad * 3 * ctx.saved_tensors[0] ** 2


class Descent(nn.Module):
    """Takes one step down a potential."""

    def __init__(self, potential):
        super().__init__()
        self.potential = potential
        self.inner, self.norm, self.outer = nn.Linear(4, 9), nn.LayerNorm(9), nn.Linear(9, 3)

    def slope(self, x):
        return torch.func.grad(lambda point: self.potential.apply(point).sum())(x)  # wrong

    def forward(self, x):
        x = self.norm(torch.tanh(self.inner(x)))
        return self.outer(x - 0.1 * self.slope(x))


def make(potential=Halved):
    torch.manual_seed(51)
    return Descent(potential).eval().requires_grad_(False), (torch.randn(5, 4),)


def smallest():
    torch.manual_seed(51)
    return torch.func.grad(lambda x: Halved.apply(x).sum()), (torch.randn(6),)


BUG = TorchBug(
    issue="pytorch/pytorch#193279",
    kind="backward",
    make=make,
    smallest=smallest,
    operators="pow",
    near="mul|sub",
    harmless=lambda: make(Cube),
)
