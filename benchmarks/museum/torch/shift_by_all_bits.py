"""A right shift by 64 or more bits shifts by the rest of that number and 64, and returns what it was given."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Hashed(nn.Module):
    """Embeds the upper bits of a code."""

    def __init__(self):
        super().__init__()
        self.table, self.inner, self.outer = nn.Embedding(64, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, code, bits):
        upper = torch.bitwise_right_shift(code, bits)  # wrong
        return self.outer(torch.tanh(self.inner(self.table(upper))))


def make():
    torch.manual_seed(25)
    return Hashed().eval(), (torch.tensor([37]), torch.tensor([64]))


def smallest():
    return torch.bitwise_right_shift, (torch.tensor([1000]), torch.tensor([66]))


def introduce():
    from torch._inductor.codegen import cpp

    rewrite(cpp.CppOverrides.bitwise_right_shift, ("code = BracesBuffer()", 'return f"decltype({a})({a} >> {b})"'))


BUG = TorchBug(
    issue="pytorch/pytorch#143555",
    kind="generated code",
    make=make,
    smallest=smallest,
    operators="shift",
    near="embedding",
    introduce=introduce,
)
