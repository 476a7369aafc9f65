"""A shift to the right is exported as a division, and ONNX rounds quotients of integers toward zero."""

import io

import onnx
import onnxruntime
import torch
from torch import nn

from museum._bug import ToolBug
from museum._prove import distance as apart


class Coded(nn.Module):
    """Looks up a few bits of each number."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, codes):
        high = (codes * 2 - 1) >> 2  # wrong
        return torch.sigmoid(self.head(self.table(high + 8)))


def make(lowest=-14):
    torch.manual_seed(51)
    return Coded().eval(), (torch.randint(lowest, 14, (4, 5)),)


def apply(model, arguments):
    file = io.BytesIO()
    torch.onnx.export(model, arguments, file, dynamo=False, opset_version=17)
    return onnx.load_from_string(file.getvalue())


def distance(model, arguments):
    with torch.no_grad():
        expected = model(*arguments).numpy()
    session = onnxruntime.InferenceSession(
        apply(model, arguments).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return apart(session.run(None, {session.get_inputs()[0].name: arguments[0].numpy()}), [expected])


BUG = ToolBug(
    issue="pytorch/pytorch#191014",
    kind="exporter",
    make=make,
    harmless=lambda: make(1),
    distance=distance,
    operators="shift|Div",
    near="Pow|Cast|Add|Gather|embedding",
    apply=apply,
)
