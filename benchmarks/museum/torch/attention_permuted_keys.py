"""Attention whose keys are permuted by (0, 2, 3, 1) is fused as if they were transposed.

The pattern ignores the numbers of a permutation, so heads and places of the keys are exchanged.
"""

import torch
from torch import nn

from museum._bug import TorchBug


class Mixer(nn.Module):
    """Attention in which the keys come with another order of axes."""

    def __init__(self, order=(0, 2, 3, 1)):
        super().__init__()
        self.queries, self.keys, self.values = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 8)
        self.outer, self.order = nn.Linear(8, 5), order

    def forward(self, x):
        q, k, v = self.queries(x), self.keys(x), self.values(x)
        scores = torch.matmul(q, k.permute(self.order)) * 0.5
        mixed = torch.matmul(scores.softmax(-1), v)  # wrong
        return self.outer(mixed)


def make():
    torch.manual_seed(4)
    return Mixer().eval(), (torch.randn(1, 8, 8, 6),)


def harmless():
    torch.manual_seed(4)
    return Mixer((0, 1, 3, 2)).eval(), (torch.randn(1, 8, 8, 6),)


def smallest():
    torch.manual_seed(4)
    return (lambda q, k, v: torch.matmul((torch.matmul(q, k.permute(0, 2, 3, 1)) * 0.5).softmax(-1), v)), tuple(
        torch.randn(1, 4, 4, 4) for _ in range(3)
    )


BUG = TorchBug(
    issue="pytorch/pytorch#195320",
    kind="pattern",
    make=make,
    smallest=smallest,
    operators="matmul|bmm|softmax|permute|transpose|scaled_dot_product|attention",
    near="mul",
    harmless=harmless,
    switch="sdpa|sfdp|attention|joint_graph|pattern_matcher",
)
