"""An average pooling with a divisor of its own is exported without it."""

import onnxruntime
import torch
from torch import nn

from museum._bug import ToolBug
from museum._prove import distance as apart


class Pooled(nn.Module):
    """Sums neighbors, on a scale of its own."""

    def __init__(self, divisor):
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 1)
        self.divisor = divisor

    def forward(self, x):
        x = torch.sigmoid(self.first(x))
        x = nn.functional.avg_pool2d(x, 2, divisor_override=self.divisor)  # wrong
        return torch.tanh(self.last(x))


def make(divisor=3):
    torch.manual_seed(53)
    return Pooled(divisor).eval(), (torch.randn(2, 2, 8, 8),)


def apply(model, arguments):
    return torch.onnx.export(model, arguments, dynamo=True, verbose=False, opset_version=20).model_proto


def distance(model, arguments):
    with torch.no_grad():
        expected = model(*arguments).numpy()
    session = onnxruntime.InferenceSession(
        apply(model, arguments).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return apart(session.run(None, {session.get_inputs()[0].name: arguments[0].numpy()}), [expected])


BUG = ToolBug(
    issue="pytorch/pytorch#105349",
    kind="exporter",
    make=make,
    harmless=lambda: make(4),
    distance=distance,
    operators="avg_pool|AveragePool",
    near="sigmoid|Conv",
    apply=apply,
)
