"""A division by a constant becomes a product with its reciprocal: exact multiples fall below the whole number."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Seasons(nn.Module):
    """Embeds the number of a season by the day."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.outer = nn.Embedding(80, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, days):
        seasons = torch.trunc(days / 61.0)  # wrong
        return self.outer(self.norm(self.table(seasons.int())))


def make():
    torch.manual_seed(17)
    return Seasons().eval(), (torch.arange(80.0) * 61,)


def smallest():
    return (lambda days: torch.trunc(days / 61.0)), (torch.arange(80.0) * 61,)


def introduce():
    from torch._inductor import lowering

    rewrite(lowering.div_prim, (' and a.get_device().type != "cpu"', ""))


BUG = TorchBug(
    issue="pytorch/pytorch#157959",
    kind="lowering",
    make=make,
    smallest=smallest,
    operators="div|trunc|mul",
    near="embedding|int|to|convert",
    introduce=introduce,
    switch="div",
)
