"""An AveragePool with padding below and at the right alone divides by too few elements: it reads the wrong pad."""

import numpy as np
import torch

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(20)
    x = graph.node("Relu", graph.input("x", [1, 2, 5, 5]), name="act")
    x = graph.node("AveragePool", x, name="mean", kernel_shape=[3, 3], pads=[0, 0, 2, 2], count_include_pad=1)
    x = graph.node("Add", x, graph.constant("one", np.float32(1)), name="shift")
    graph.output(graph.node("Sqrt", x, name="root"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(9).normal(size=(1, 2, 5, 5)).astype(np.float32) + 1}


def expected(feed):
    x = torch.nn.functional.pad(torch.relu(torch.tensor(feed["x"], dtype=torch.float64)), (0, 2, 0, 2))
    return [torch.sqrt(torch.nn.functional.avg_pool2d(x, 3, 1) + 1).float().numpy()]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#26708",
    kind="kernel",
    wrong="1.24.4",
    right="1.25.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"mean"}),
    near=frozenset({"act", "shift"}),
)
