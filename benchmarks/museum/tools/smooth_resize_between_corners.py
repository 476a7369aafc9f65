"""A smooth interpolation between corners is exported as a Resize with antialias, which ONNX computes in another way."""

import onnxruntime
import torch
from torch import nn

from museum._bug import ToolBug
from museum._prove import distance as apart


class Thumbnail(nn.Module):
    """Shrinks features to a fixed size."""

    def __init__(self, *, align_corners):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.align_corners = align_corners

    def forward(self, x):
        x = torch.tanh(self.first(x))
        way = {"mode": "bilinear", "antialias": True, "align_corners": self.align_corners}
        x = nn.functional.interpolate(x, size=(4, 5), **way)  # wrong
        return self.last(x)


def make(*, align_corners=True):
    torch.manual_seed(52)
    return Thumbnail(align_corners=align_corners).eval(), (torch.randn(1, 3, 9, 11),)


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
    issue="microsoft/onnxscript#2916",
    kind="exporter",
    make=make,
    harmless=lambda: make(align_corners=False),
    distance=distance,
    operators="interpolate|upsample|Resize",
    near="tanh|Conv",
    apply=apply,
)
