"""The AveragePool of a quantized model, with ceil_mode, divides by the whole kernel past the padding."""

import numpy as np
import torch

from museum._bug import OnnxBug
from museum._graphs import Graph


def make(size=8):
    graph = Graph(18)
    scale, other = graph.constant("scale", np.float32(0.02)), graph.constant("other", np.float32(0.013))
    zero = graph.constant("zero", np.uint8(0))
    x = graph.node("Sigmoid", graph.input("x", [1, 2, size, size]), name="gate")
    x = graph.node(
        "DequantizeLinear", graph.node("QuantizeLinear", x, scale, zero, name="pack"), scale, zero, name="unpack"
    )
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}
    x = graph.node("AveragePool", x, name="mean", **attributes)
    x = graph.node(
        "DequantizeLinear",
        graph.node("QuantizeLinear", x, other, zero, name="pack_again"),
        other,
        zero,
        name="unpack_again",
    )
    graph.output(graph.node("Exp", x, name="grow"))
    return graph.model()


def inputs(size=8):
    return {"x": np.random.default_rng(30).normal(size=(1, 2, size, size)).astype(np.float32)}


def rounded(x, scale):
    return torch.round(x / scale).clamp(0, 255) * scale


def expected(feed):
    x = rounded(torch.sigmoid(torch.tensor(feed["x"], dtype=torch.float64)), 0.02)
    x = torch.nn.functional.avg_pool2d(x, 3, 2, ceil_mode=True)
    return [torch.exp(rounded(x, 0.013)).float().numpy()]


def control():
    return make(9), inputs(9)


BUG = OnnxBug(
    issue="microsoft/onnxruntime#32132",
    kind="quantized",
    wrong="1.32.0",
    right=None,
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"mean"}),
    near=frozenset({"unpack", "pack_again"}),
    optimizers=frozenset({"QDQSelectorActionTransformer"}),
    control=control,
)
