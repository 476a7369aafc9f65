"""PRelu multiplies positive numbers by the slope, too, and throws the product away: infinity times 0 is NaN."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.node("Exp", graph.input("x", [3, 4]), name="grow")
    x = graph.node("PRelu", x, graph.constant("slope", np.array([0, 0.5, 0, 0.25], np.float32)), name="leak")
    graph.output(graph.node("Reciprocal", x, name="part"))
    return graph.model()


def inputs():
    x = np.random.default_rng(31).normal(size=(3, 4)).astype(np.float32)
    x[0, 0] = x[1, 2] = x[2, 1] = 200
    return {"x": x}


def expected(feed):
    return [np.exp(-feed["x"].astype(np.float64)).astype(np.float32)]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28743",
    kind="NaN",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"leak"}),
    near=frozenset({"grow", "part"}),
)
