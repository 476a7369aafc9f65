"""A Conv of quantized numbers takes its bias as if it had the product of the scales of input and weight."""

import numpy as np
import torch

from museum._bug import OnnxBug
from museum._graphs import Graph

RNG = np.random.default_rng(18)
WEIGHT, BIAS = RNG.integers(-60, 60, (3, 2, 3, 3)).astype(np.int8), RNG.integers(-90, 90, 3).astype(np.int32)
IN, SIZE, OFFSET, OUT = np.float32(0.02), np.float32(0.01), np.float32(0.05), np.float32(0.1)


def make():
    graph = Graph(18)
    zero = graph.constant("zero", np.int8(0))
    scales = {
        name: graph.constant(name, value)
        for name, value in (("in", IN), ("size", SIZE), ("offset", OFFSET), ("out", OUT))
    }
    x = graph.node("Tanh", graph.input("x", [1, 2, 6, 6]), name="act")
    x = graph.node(
        "DequantizeLinear",
        graph.node("QuantizeLinear", x, scales["in"], zero, name="pack"),
        scales["in"],
        zero,
        name="unpack",
    )
    w = graph.node("DequantizeLinear", graph.constant("w", WEIGHT), scales["size"], zero, name="weight")
    b = graph.node("DequantizeLinear", graph.constant("b", BIAS), scales["offset"], name="bias")
    x = graph.node("Conv", x, w, b, name="conv", kernel_shape=[3, 3])
    x = graph.node(
        "DequantizeLinear",
        graph.node("QuantizeLinear", x, scales["out"], zero, name="pack_out"),
        scales["out"],
        zero,
        name="unpack_out",
    )
    graph.output(graph.node("Relu", x, name="cut"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(19).normal(size=(1, 2, 6, 6)).astype(np.float32)}


def expected(feed):
    x = np.clip(np.rint(np.tanh(feed["x"].astype(np.float64)) / IN), -128, 127) * float(IN)
    x = torch.nn.functional.conv2d(
        torch.tensor(x), torch.tensor(WEIGHT * float(SIZE)), torch.tensor(BIAS * float(OFFSET))
    )
    x = torch.round(x / float(OUT)).clamp(-128, 127) * float(OUT)
    return [torch.relu(x).float().numpy()]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#24711",
    kind="quantized",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"conv", "bias"}),
    near=frozenset({"unpack", "weight", "pack_out"}),
    optimizers=frozenset({"QDQSelectorActionTransformer"}),
)
