"""The mean of a long row is added up in float32 in one chain, and large partial sums swallow what is added."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Average(nn.Module):
    """Projects the mean of a long recording."""

    def __init__(self):
        super().__init__()
        self.inner, self.middle, self.outer = nn.Linear(1, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        level = torch.mean(x, -1, keepdim=True)  # wrong
        return self.outer(torch.tanh(self.middle(self.inner(level - 2))))


def make():
    torch.manual_seed(27)
    return Average().eval().requires_grad_(False), (torch.rand(1, 5_000_000) * 0.002 + 2.3,)


def smallest():
    torch.manual_seed(27)
    return (lambda x: torch.mean(x, -1)), (torch.rand(1, 5_000_000) * 0.002 + 2.3,)


def introduce():
    from torch._inductor.codegen import cpp

    rewrite(cpp.CppKernel._acc_helper_init, ("chunk_size = 4096", "chunk_size = 1 << 20"))


BUG = TorchBug(
    issue="pytorch/pytorch#154703",
    kind="generated code",
    make=make,
    smallest=smallest,
    operators="mean|sum",
    near="div|sub",
    introduce=introduce,
)
