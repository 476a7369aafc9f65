"""LayerNormalization takes the squared mean from the mean of squares: of large numbers, nothing is left."""

import numpy as np
import torch

from museum._bug import OnnxBug
from museum._graphs import Graph

SCALE = np.linspace(0.5, 1.5, 16, dtype=np.float32)


def make():
    graph = Graph(17)
    x = graph.node("Mul", graph.input("x", [4, 16]), graph.constant("two", np.float32(2)), name="double")
    x = graph.node("Add", x, graph.constant("far", np.float32(60000)), name="shift")
    bias = graph.constant("bias", np.zeros(16, np.float32))
    x = graph.node("LayerNormalization", x, graph.constant("scale", SCALE), bias, name="norm", axis=-1)
    graph.output(graph.node("Sigmoid", x, name="gate"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(2).integers(0, 6, size=(4, 16)).astype(np.float32)}


def expected(feed):
    x = torch.tensor(feed["x"], dtype=torch.float64) * 2 + 60000
    return [torch.sigmoid(torch.nn.functional.layer_norm(x, [16], torch.tensor(SCALE).double())).float().numpy()]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28463",
    kind="kernel",
    wrong="1.26.0",
    right="1.30.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"norm"}),
    near=frozenset({"shift", "gate"}),
)
