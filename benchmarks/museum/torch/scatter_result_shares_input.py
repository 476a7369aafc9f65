"""A scatter that is copied back into its input is returned as that input, so that a change of one changes the other."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Cache(nn.Module):
    """Writes two rows to a cache, and goes on with a copy of it."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 4)

    def forward(self, cache, x):
        rows = self.norm(torch.relu(self.inner(x)))
        filled = torch.slice_scatter(cache, rows, 0, 2, 4)  # wrong
        cache.copy_(filled)
        torch._dynamo.graph_break()
        return self.outer(filled.sub_(1.0))


def make():
    torch.manual_seed(63)
    return Cache().eval(), (torch.randn(5, 6), torch.randn(2, 3))


def smallest():
    def fill(cache, row):
        filled = torch.select_scatter(cache, row, 0, 1)
        cache.copy_(filled)
        torch._dynamo.graph_break()
        return filled.mul_(2.0)

    torch.manual_seed(63)
    return fill, (torch.randn(3, 2), torch.randn(2))


def repair():
    from torch._inductor.fx_passes import reinplace

    head = "def should_reinplace_scatter(node: torch.fx.Node) -> bool:\n"
    rewrite(reinplace.should_reinplace_scatter, (head, f"{head}    return False\n"))


BUG = TorchBug(
    issue="pytorch/pytorch#195484",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="scatter|copy",
    near="slice|select|sub|mul",
    repair=repair,
    switch="reinplace",
)
