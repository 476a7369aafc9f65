"""ReduceSumSquare with empty axes and noop_with_empty_axes returns its input where it should square it."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.node("Tanh", graph.input("x", [3, 4]), name="act")
    axes = graph.constant("axes", np.zeros(0, np.int64))
    x = graph.node("ReduceSumSquare", x, axes, name="energy", noop_with_empty_axes=1)
    graph.output(graph.node("Exp", x, name="grow"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(20).normal(size=(3, 4)).astype(np.float32)}


def expected(feed):
    return [np.exp(np.tanh(feed["x"].astype(np.float64)) ** 2).astype(np.float32)]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#26288",
    kind="kernel",
    wrong="1.23.2",
    right="1.24.4",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"energy"}),
    near=frozenset({"act", "grow"}),
)
