"""randn_like of a transposed tensor is drawn as a contiguous one, whose numbers come in another order.

With fallback_random the compiled code has to draw what eager PyTorch draws.
"""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Noisy(nn.Module):
    """Adds noise to the transposed output of a layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.middle, self.outer = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(4, 2)

    def forward(self, x):
        x = torch.tanh(self.middle(torch.relu(self.inner(x)))).t()
        return self.outer(x + torch.randn_like(x))  # wrong


def make():
    torch.manual_seed(30)
    return Noisy().eval(), (torch.randn(4, 5),)


def smallest():
    return torch.randn_like, (torch.zeros(7, 3).t(),)


def prepare():
    from torch._inductor import config

    config.fallback_random = True


def introduce():
    from torch._inductor import decomposition

    rewrite(
        decomposition.select_decomp_table,
        (
            "        return decompositions\n    if",
            "        return {**decompositions, aten.randn_like.default: randn_like}\n    if",
        ),
    )


BUG = TorchBug(
    issue="pytorch/pytorch#177652",
    kind="random",
    make=make,
    smallest=smallest,
    operators="rand",
    near="add|permute|transpose|^t$",
    prepare=prepare,
    introduce=introduce,
)
