"""A Pad with zeros is folded into a MaxPool, whose own padding is minus infinity: negative numbers differ."""

import numpy as np
import torch

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.input("x", [1, 2, 4, 4])
    x = graph.node("Tanh", x, name="act")
    pads = graph.constant("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    x = graph.node("Pad", x, pads, graph.constant("zero", np.float32(0)), name="pad", mode="constant")
    x = graph.node("MaxPool", x, name="pool", kernel_shape=[2, 2], strides=[1, 1])
    graph.output(graph.node("Exp", x, name="grow"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32) - 1}


def expected(feed):
    x = torch.nn.functional.pad(torch.tanh(torch.tensor(feed["x"], dtype=torch.float64)), (1, 1, 1, 1))
    return [torch.exp(torch.nn.functional.max_pool2d(x, 2, 1)).float().numpy()]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#18136",
    kind="fusion",
    wrong="1.31.1",
    right="1.32.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"pad", "pool"}),
    near=frozenset({"act", "grow"}),
    optimizers=frozenset({"Pad_Fusion"}),
)
