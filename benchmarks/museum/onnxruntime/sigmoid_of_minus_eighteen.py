"""Sigmoid of numbers below minus 18 is 0, or even negative, although float32 has room for it."""

import numpy as np
import torch

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.node("Mul", graph.input("x", [4, 9]), graph.constant("four", np.float32(4)), name="scale")
    x = graph.node("Sigmoid", x, name="chance")
    graph.output(graph.node("Log", x, name="log"))
    return graph.model()


def inputs():
    return {"x": np.linspace(-7, 4, 36, dtype=np.float32).reshape(4, 9)}


def expected(feed):
    return [torch.nn.functional.logsigmoid(torch.tensor(feed["x"], dtype=torch.float64) * 4).float().numpy()]


def control():
    return make(), {"x": np.linspace(-1, 1, 36, dtype=np.float32).reshape(4, 9)}


BUG = OnnxBug(
    issue="microsoft/onnxruntime#22557",
    kind="kernel",
    wrong="1.32.0",
    right=None,
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"chance"}),
    near=frozenset({"log"}),
    control=control,
)
