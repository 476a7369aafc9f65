"""A full backward hook that a layer gets after the first call is ignored in the second one."""

import torch
from torch import nn

from museum._bug import TorchBug


def damp(module, grad_input, grad_output):
    return tuple(grad * 0.25 for grad in grad_input)


class Hooked(nn.Module):
    """Damps the gradient of a layer if it is asked to."""

    def __init__(self, *, works=True):
        super().__init__()
        self.works, self.handle = works, None
        self.inner, self.middle, self.outer = nn.Linear(4, 7), nn.Linear(7, 7), nn.Linear(7, 2)

    @torch.compiler.disable
    def hook(self, wanted):
        if self.handle is not None:
            self.handle.remove()
        self.handle = self.middle.register_full_backward_hook(damp) if wanted and self.works else None

    def forward(self, x, wanted):
        self.hook(wanted)
        x = torch.sin(self.inner(x))
        x = self.middle(x)  # wrong
        return self.outer(torch.cos(x))


def make(*, works=True):
    torch.manual_seed(56)
    return Hooked(works=works), (torch.randn(3, 4, requires_grad=True), False)


def again():
    torch.manual_seed(57)
    return torch.randn(3, 4, requires_grad=True), True


def smallest():
    torch.manual_seed(56)
    model = Hooked()

    def both(x):
        return model(x, False), model(x, True)

    return both, (torch.randn(2, 4, requires_grad=True),)


BUG = TorchBug(
    issue="pytorch/pytorch#115750",
    kind="guards",
    make=make,
    smallest=smallest,
    operators="addmm|linear|mm",
    near="sin|cos",
    harmless=lambda: make(works=False),
    backward=True,
    again=again,
)
