"""Dropout of channels compares uniform numbers with a probability, where eager PyTorch draws Bernoulli numbers.

With fallback_random the compiled code has to draw what eager PyTorch draws.
"""

import torch
from torch import nn
from torch.nn import functional as F

from museum._bug import TorchBug, rewrite


class Dropped(nn.Module):
    """Drops channels between two convolutions."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv1d(3, 12, 2), nn.Conv1d(12, 12, 1), nn.Conv1d(12, 2, 2)

    def forward(self, x):
        x = torch.tanh(self.second(torch.relu(self.first(x))))
        x = F.dropout1d(x, 0.4, training=True)  # wrong
        return self.last(x)


def make():
    torch.manual_seed(31)
    return Dropped().eval(), (torch.randn(2, 3, 7),)


def smallest():
    return (lambda x: F.dropout1d(x, 0.4, training=True)), (torch.ones(3, 8, 2),)


def prepare():
    from torch._inductor import config

    config.fallback_random = True


def introduce():
    from torch._decomp import decompositions_for_rng
    from torch._inductor import decomposition

    chosen = "{**decompositions, aten.bernoulli.p: extra_random_decomps[aten.bernoulli.p]}"
    rewrite(
        decomposition.select_decomp_table, ("        return decompositions\n    if", f"        return {chosen}\n    if")
    )
    rewrite(decompositions_for_rng.bernoulli_p, ('if self.device == torch.device("cpu"):', "if False:"))


BUG = TorchBug(
    issue="pytorch/pytorch#142853",
    kind="random",
    make=make,
    smallest=smallest,
    operators="dropout|bernoulli|rand|lt",
    near="mul|div",
    prepare=prepare,
    introduce=introduce,
)
