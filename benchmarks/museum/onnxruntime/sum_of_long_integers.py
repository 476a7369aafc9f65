"""ReduceSum of 64-bit integers adds them as floating-point numbers, which have 53 bits."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.node("Mul", graph.input("x", [3, 5], np.int64), graph.constant("three", np.array(3)), name="triple")
    x = graph.node("ReduceSum", x, graph.constant("axes", np.array([1])), name="total", keepdims=0)
    graph.output(graph.node("Sub", x, graph.constant("far", np.array(3 * 2**58)), name="rest"), np.int64)
    return graph.model()


def inputs():
    x = np.random.default_rng(32).integers(0, 100, (3, 5))
    x[:, 2] = 2**58
    return {"x": x}


def expected(feed):
    return [feed["x"].sum(1) * 3 - 3 * 2**58]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28743",
    kind="integers",
    wrong="1.32.0",
    right="1.26.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"total"}),
    near=frozenset({"triple", "rest"}),
)
