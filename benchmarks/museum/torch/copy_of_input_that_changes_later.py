"""An input is copied into another one and changed then: the copy is taken after the change.

The pass that removes operators without effect replaces the copy by the input itself.
"""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Trace(nn.Module):
    """Keeps the state before a step."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate, self.outer = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, state, before, x):
        x = torch.sigmoid(self.gate(torch.relu(self.inner(x))))
        before[:, :] = state[:, 0:]  # wrong
        state.mul_(0.5)
        return self.outer(x * state)


def make():
    torch.manual_seed(46)
    return Trace().eval(), (torch.randn(3, 6), torch.zeros(3, 6), torch.randn(3, 6))


def smallest():
    def step(state, before):
        before[:] = state[:]
        state.add_(2.0)
        return state

    torch.manual_seed(46)
    return step, (torch.randn(4), torch.zeros(4))


def repair():
    from torch._inductor.fx_passes import post_grad

    kept = "if node.target in (aten.copy.default, aten.clone.default):\n                continue\n            "
    rewrite(post_grad.remove_noop_ops, ("if same_meta(node, src) and", f"{kept}if same_meta(node, src) and"))


BUG = TorchBug(
    issue="pytorch/pytorch#198131",
    kind="mutation and aliases",
    make=make,
    smallest=smallest,
    operators="copy|setitem",
    near="mul|add|slice",
    repair=repair,
    switch="noop",
)
