"""The pass batch_aten_sub stacks equal subtractions into one, and forgets their alpha."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Residuals(nn.Module):
    """Takes three times a mean off each of several projections."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(9, 12) for _ in range(5))
        self.mean, self.outer = nn.Linear(9, 12), nn.Linear(60, 2)

    def forward(self, x):
        mean = torch.tanh(self.mean(x))
        parts = [torch.sub(torch.relu(part(x)), mean, alpha=3) for part in self.parts]  # wrong
        return self.outer(torch.cat(parts, -1))


def make():
    torch.manual_seed(11)
    return Residuals().eval(), (torch.randn(7, 9),)


def smallest():
    torch.manual_seed(11)
    return (lambda *x: [torch.sub(a, b, alpha=3) for a, b in zip(x[::2], x[1::2], strict=True)]), tuple(
        torch.randn(3, 4) for _ in range(10)
    )


def prepare():
    from torch._inductor import config

    config.post_grad_fusion_options = {"batch_aten_sub": {"min_fuse_set_size": 2}}


def repair():
    from torch._inductor.fx_passes import group_batch_fusion

    rewrite(
        group_batch_fusion.BatchPointwiseMathOpsPostGradFusion.fuse,
        ("if self.op == aten.add.Tensor else {}", "if self.op in (aten.add.Tensor, aten.sub.Tensor) else {}"),
    )


BUG = TorchBug(
    issue="pytorch/pytorch#195442",
    kind="pattern",
    make=make,
    smallest=smallest,
    operators="sub|stack",
    near="cat|relu|tanh|select|mul",
    prepare=prepare,
    repair=repair,
    switch="batch_aten_sub|post_grad|group_batch",
)
