"""A function with a derivative of its own that gets one tensor twice passes on one of its two gradients only."""

import torch
from torch import nn

from museum._bug import TorchBug, rewrite


class Blend(torch.autograd.Function):
    """A product, with its derivative written by hand."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b, grad * a


class Gate(nn.Module):
    """Squares features by a product of two arguments."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 2)

    def forward(self, x):
        x = self.norm(torch.tanh(self.inner(x)))
        x = Blend.apply(x, x)  # wrong
        return self.outer(x)


def make():
    torch.manual_seed(71)
    return Gate(), (torch.randn(4, 5, requires_grad=True),)


def smallest():
    torch.manual_seed(71)
    return (lambda x: Blend.apply(x, x)), (torch.randn(6, requires_grad=True),)


def introduce():
    from torch._dynamo.variables.higher_order_ops import AutogradFunctionApplyVariable

    asked = "if any(fake_tensor is seen for seen in tensor_args_seen):"
    rewrite(AutogradFunctionApplyVariable.rewire_bwd_graph_outputs, (asked, "if False:"))


BUG = TorchBug(
    issue="pytorch/pytorch#183604",
    kind="backward",
    make=make,
    smallest=smallest,
    operators="autograd_function|apply|mul",
    near="norm|linear|mm",
    introduce=introduce,
    backward=True,
)
