"""as_strided with an offset counts from the start of an input that is a part of a storage, not from the storage's."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


def corner(memory):
    """Return every second number of three rows of the whole storage."""
    return torch.as_strided(memory, (3, 2), (6, 2), 6)


class Recall(nn.Module):
    """Adds what was stored before the part that it is given."""

    def __init__(self):
        super().__init__()
        self.inner, self.middle, self.outer = nn.Linear(5, 4), nn.Linear(4, 2), nn.Linear(2, 3)

    def forward(self, x, memory):
        x = torch.tanh(self.middle(torch.relu(self.inner(x))))
        return self.outer(x - corner(memory))  # wrong


def make():
    torch.manual_seed(18)
    return Recall().eval().requires_grad_(False), (torch.randn(3, 5), torch.randn(9, 6)[3:])


def smallest():
    torch.manual_seed(18)
    return (lambda memory: corner(memory) + 1), (torch.randn(9, 6)[3:],)


def introduce():
    from torch._inductor import lowering

    rewrite(
        lowering.as_strided, ("if explicit_storage_offset and isinstance(storage_data, ir.InputBuffer):", "if False:")
    )


BUG = TorchBug(
    issue="pytorch/pytorch#175325",
    kind="lowering",
    make=make,
    smallest=smallest,
    operators="as_strided|sub",
    near="tanh|linear|addmm",
    introduce=introduce,
    switch="as_strided",
)
