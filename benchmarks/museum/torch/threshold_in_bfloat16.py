"""Under autocast, bfloat16 scores are compared with a threshold that is not rounded to bfloat16, as it is in eager."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Detector(nn.Module):
    """Keeps boxes whose score is above a threshold."""

    def __init__(self):
        super().__init__()
        self.scores, self.inner, self.outer = nn.Linear(4, 4, bias=False), nn.Linear(4, 6), nn.Linear(6, 2)
        with torch.no_grad():
            self.scores.weight.copy_(torch.eye(4))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            scores = self.scores(x)
        keep = scores > 0.2  # wrong
        return self.outer(torch.tanh(self.inner(keep.float())))


def make():
    torch.manual_seed(28)
    return Detector().eval(), (torch.tensor([[0.1, 0.2001, 0.3, 0.4], [0.2, 0.5, 0.1, 0.2002]]),)


def smallest():
    return (lambda x: (x > 0.1).float()), (torch.full((8,), 0.1).bfloat16(),)


def introduce():
    from torch._inductor import lowering

    rewrite(lowering.promote_constants, ("if override_return_dtype == torch.bool and", "if False and"))


BUG = TorchBug(
    issue="pytorch/pytorch#128306",
    kind="autocast",
    make=make,
    smallest=smallest,
    operators="gt|greater",
    near="linear|mm|convert|to|float",
    introduce=introduce,
)
