"""The decomposition of multilabel_margin_loss adds loss terms for the places after the first -1 of a target row.

Eager PyTorch stops at the first -1; the decomposition reads the score of class 0 there.
"""

import torch
from torch import nn
from torch.nn import functional as F

from museum._bug import TorchBug, rewrite


class Tagger(nn.Module):
    """Scores seven tags, and returns the loss of each row beside a summary."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.scores, self.outer = (
            nn.Linear(6, 10),
            nn.LayerNorm(10),
            nn.Linear(10, 7),
            nn.Linear(1, 2),
        )

    def forward(self, x, tags):
        scores = self.scores(self.norm(torch.tanh(self.inner(x))))
        loss = F.multilabel_margin_loss(scores, tags, reduction="none")  # wrong
        return self.outer(loss.unsqueeze(-1))


def make():
    torch.manual_seed(1)
    tags = torch.tensor([[2, 5, -1, -1, -1, -1, -1], [0, -1, 3, -1, -1, -1, -1], [6, 1, 4, -1, -1, -1, -1]])
    return Tagger().eval(), (torch.randn(3, 6), tags)


def smallest():
    return F.multilabel_margin_loss, (torch.tensor([[0.9, -0.4, 0.1]]), torch.tensor([[1, -1, -1]]))


def repair():
    from torch._decomp import decompositions

    rewrite(
        decompositions.multilabel_margin_loss_forward,
        ("z = torch.where(is_target, 0, z)", "z = torch.where(is_target | ~target_mask.T.unsqueeze(-1), 0, z)"),
    )


BUG = TorchBug(
    issue="pytorch/pytorch#141017",
    kind="decomposition",
    make=make,
    smallest=smallest,
    operators="multilabel_margin|gather|where|clamp",
    near="sub|sum|unsqueeze",
    repair=repair,
    switch="multilabel_margin",
)
