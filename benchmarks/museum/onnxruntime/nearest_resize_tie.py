"""A nearest Resize takes the lower one of two equally near pixels, where round_prefer_ceil asks for the other."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.node("Tanh", graph.input("x", [1, 2, 3, 20]), name="act")
    sizes = graph.constant("sizes", np.array([1, 2, 3, 6]))
    x = graph.node("Resize", x, "", "", sizes, name="shrink", mode="nearest", nearest_mode="round_prefer_ceil")
    graph.output(graph.node("Exp", x, name="grow"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(23).normal(size=(1, 2, 3, 20)).astype(np.float32)}


def expected(feed):
    x = np.tanh(feed["x"].astype(np.float64))
    picked = [((2 * index + 1) * 20 // 6) // 2 for index in range(6)]  # half a pixel up, rounded down, exactly
    return [np.exp(x[..., picked]).astype(np.float32)]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28291",
    kind="kernel",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"shrink"}),
    near=frozenset({"act", "grow"}),
)
