"""A product with the integer 0 is folded into a constant 0, also where the other factor is NaN or infinite."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Checked(nn.Module):
    """Marks the rows that are not finite with a product by 0."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        hidden = torch.log(self.inner(x))
        marks = hidden * 0  # wrong
        return self.outer(torch.isnan(marks).float())


def make():
    torch.manual_seed(5)
    return Checked().eval(), (torch.randn(6, 4),)


def smallest():
    return (lambda x: torch.exp(x) * 0), (torch.tensor([1.0, 100.0, float("nan")]),)


def repair():
    from torch._inductor.fx_passes import joint_graph

    folder = joint_graph.UniformValueConstantFolder
    rewrite(
        folder._add_peephole_patterns,
        ("if not isinstance(tensor_val, torch.Tensor)", "if tensor_val is None or tensor_val.is_floating_point()"),
    )


BUG = TorchBug(
    issue="pytorch/pytorch#186281",
    kind="pattern",
    make=make,
    smallest=smallest,
    operators="mul|isnan|full",
    near="log|exp",
    repair=repair,
    switch="constant_fold|joint_graph|peephole|fold",
)
