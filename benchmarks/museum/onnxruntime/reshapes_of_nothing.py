"""Two Reshapes of an empty tensor become one that has lost allowzero: a zero copies a size of the first tensor."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.node("Tanh", graph.input("x", [0, 6, 2]), name="act")
    x = graph.node("Reshape", x, graph.constant("first", np.array([3, 2, -1])), name="split")
    x = graph.node("Reshape", x, graph.constant("second", np.array([0, 0, 3])), name="join", allowzero=1)
    x = graph.node("ReduceSum", x, graph.constant("axes", np.array([0])), name="total", keepdims=0)
    graph.output(graph.node("Exp", x, name="grow"))
    return graph.model()


def inputs():
    return {"x": np.zeros((0, 6, 2), np.float32)}


def expected(feed):
    return [np.zeros((0, 3), np.float32)]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28349",
    kind="fusion",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"split", "join"}),
    near=frozenset({"total", "grow"}),
    optimizers=frozenset({"ReshapeFusion"}),
)
