"""With ceil_mode, an AveragePool divides by the whole kernel where the last window reaches past the padding."""

import numpy as np
import torch

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(17)
    x = graph.node("Exp", graph.input("x", [1, 3, 8, 8]), name="positive")
    x = graph.node(
        "AveragePool",
        x,
        name="mean",
        kernel_shape=[5, 5],
        strides=[2, 2],
        pads=[2, 2, 2, 2],
        ceil_mode=1,
        count_include_pad=1,
    )
    graph.output(graph.node("Log", x, name="back"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)}


def expected(feed):
    x = torch.exp(torch.tensor(feed["x"], dtype=torch.float64))
    return [torch.log(torch.nn.functional.avg_pool2d(x, 5, 2, 2, ceil_mode=True)).float().numpy()]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#16203",
    kind="kernel",
    wrong="1.28.0",
    right="1.29.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"mean"}),
    near=frozenset({"positive", "back"}),
)
