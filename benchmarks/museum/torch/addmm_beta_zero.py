"""addmm of a single row is decomposed to a product and a sum, which multiplies the ignored input by beta = 0.

Eager PyTorch doesn't read that input: NaN in it stays out of the result.
"""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Gate(nn.Module):
    """Adds nothing of a state that was not filled yet to the projection of one row."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 8), nn.Linear(12, 3)
        self.weight = nn.Parameter(torch.randn(8, 12) / 3)

    def forward(self, x, state):
        row = torch.relu(self.inner(x))
        mixed = torch.addmm(state, row, self.weight, beta=0.0)  # wrong
        return self.outer(torch.sigmoid(mixed))


def make():
    torch.manual_seed(2)
    return Gate().eval(), (torch.randn(1, 5), torch.full((12,), float("nan")))


def smallest():
    torch.manual_seed(2)
    return (lambda s, a, b: torch.addmm(s, a, b, beta=0.0)), (
        torch.full((3,), float("nan")),
        torch.randn(1, 4),
        torch.randn(4, 3),
    )


def repair():
    from torch._inductor import decomposition

    rewrite(decomposition.addmm, ('if self.device.type == "cpu":', 'if self.device.type == "cpu" and beta:'))


BUG = TorchBug(
    issue="pytorch/pytorch#196596",
    kind="decomposition",
    make=make,
    smallest=smallest,
    operators="addmm|linear|mul|add",
    near="sigmoid",
    repair=repair,
    switch="addmm",
)
