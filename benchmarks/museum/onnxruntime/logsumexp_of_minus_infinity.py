"""ReduceLogSumExp of numbers that are all minus infinity is NaN, because their maximum is taken away from each."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.node("Relu", graph.input("x", [2, 4]), name="act")
    x = graph.node("Log", x, name="log")
    x = graph.node("ReduceLogSumExp", x, name="total", keepdims=0)
    graph.output(graph.node("Exp", x, name="back"))
    return graph.model()


def inputs():
    return {"x": -np.arange(8, dtype=np.float32).reshape(2, 4)}


def expected(feed):
    return [np.maximum(feed["x"].astype(np.float64), 0).sum().astype(np.float32)]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28461",
    kind="NaN",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"total"}),
    near=frozenset({"log", "back"}),
)
