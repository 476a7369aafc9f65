"""A linear Resize of quantized numbers runs on the integers themselves, and cuts off instead of rounding."""

import numpy as np
import torch

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    scale, zero = graph.constant("scale", np.float32(0.5)), graph.constant("zero", np.int8(0))
    x = graph.node("Mul", graph.input("x", [1, 2, 3, 3]), graph.constant("three", np.float32(3)), name="triple")
    x = graph.node("QuantizeLinear", x, scale, zero, name="pack")
    x = graph.node("DequantizeLinear", x, scale, zero, name="unpack")
    x = graph.node("Resize", x, "", "", graph.constant("sizes", np.array([1, 2, 5, 5])), name="grow", mode="linear")
    x = graph.node("QuantizeLinear", x, scale, zero, name="pack_again")
    x = graph.node("DequantizeLinear", x, scale, zero, name="unpack_again")
    graph.output(graph.node("Tanh", x, name="squash"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(6).normal(size=(1, 2, 3, 3)).astype(np.float32)}


def expected(feed):
    x = torch.tensor(feed["x"], dtype=torch.float64) * 3
    x = torch.round(x / 0.5).clamp(-128, 127) * 0.5
    x = torch.nn.functional.interpolate(x, size=(5, 5), mode="bilinear", align_corners=False)
    return [torch.tanh(torch.round(x / 0.5).clamp(-128, 127) * 0.5).float().numpy()]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28448",
    kind="quantized",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"grow"}),
    near=frozenset({"unpack", "pack_again"}),
    optimizers=frozenset({"QDQSelectorActionTransformer"}),
)
