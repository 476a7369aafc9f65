"""The pass batch_nan_to_num stacks equal calls of nan_to_num into one, and forgets their positional arguments."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Branches(nn.Module):
    """Replaces NaN by 2 in each of several branches."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(5, 6) for _ in range(6))
        self.outer = nn.Linear(6, 3)

    def forward(self, x):
        parts = [torch.log(branch(x)) for branch in self.branches]
        parts = [torch.nan_to_num(part, 2.0) for part in parts]  # wrong
        return self.outer(torch.stack(parts).mean(0))


def make():
    torch.manual_seed(8)
    return Branches().eval(), (torch.randn(4, 5),)


def smallest():
    torch.manual_seed(8)
    return (lambda *parts: [torch.nan_to_num(part, 3.0) for part in parts]), tuple(
        torch.tensor([float("nan"), 1.0]) for _ in range(6)
    )


def prepare():
    from torch._inductor import config

    config.pre_grad_fusion_options = {"batch_nan_to_num": {"min_fuse_set_size": 2}}


def repair():
    from torch._inductor.fx_passes import group_batch_fusion

    rewrite(
        group_batch_fusion.BatchMathOpsPreGradFusion.fuse,
        ("args=(stack_inputs,),", "args=(stack_inputs, *subset[0].args[1:]),"),
    )


BUG = TorchBug(
    issue="pytorch/pytorch#190976",
    kind="pattern",
    make=make,
    smallest=smallest,
    operators="nan_to_num|stack|where|isnan",
    near="log|mean|unbind",
    prepare=prepare,
    repair=repair,
    switch="batch_nan_to_num|pre_grad|group_batch",
)
