"""A submodule that an attribute of the module hides after the first call is still used in the second one.

No guard asks whether the instance has an attribute with the name of the submodule.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Adapted(nn.Module):
    """Uses another layer in place of its own if it is asked to."""

    def __init__(self, *, hide=True):
        super().__init__()
        self.hide = hide
        self.inner, self.middle, self.other, self.outer = (
            nn.Linear(4, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 3),
        )

    @torch.compiler.disable
    def adapt(self, wanted):
        self.__dict__.pop("middle", None)
        if wanted and self.hide:
            object.__setattr__(self, "middle", self.other)

    def forward(self, x, wanted):
        self.adapt(wanted)
        x = torch.tanh(self.inner(x))
        x = torch.tanh(self.middle(x))  # wrong
        return self.outer(x)


def make(*, hide=True):
    torch.manual_seed(54)
    return Adapted(hide=hide).eval(), (torch.randn(5, 4), False)


def again():
    torch.manual_seed(55)
    return torch.randn(5, 4), True


def smallest():
    torch.manual_seed(54)
    model = Adapted().eval()

    def both(x):
        return model(x, False) - model(x, True)

    return both, (torch.randn(2, 4),)


BUG = TorchBug(
    issue="pytorch/pytorch#197859",
    kind="guards",
    make=make,
    smallest=smallest,
    operators="addmm|linear|mm",
    near="tanh",
    harmless=lambda: make(hide=False),
    again=again,
)
