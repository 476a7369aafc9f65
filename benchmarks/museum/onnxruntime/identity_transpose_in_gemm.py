"""A Transpose that keeps the order of the axes is taken for a real one when it is folded into a Gemm."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph

WEIGHT = np.random.default_rng(3).normal(size=(5, 5)).astype(np.float32)


def make():
    graph = Graph(17)
    x = graph.node("Sigmoid", graph.input("x", [5, 5]), name="gate")
    x = graph.node("Transpose", x, name="same", perm=[0, 1])
    bias = graph.constant("b", np.linspace(-1, 1, 5, dtype=np.float32))
    x = graph.node("Gemm", x, graph.constant("w", WEIGHT), bias, name="dense")
    graph.output(graph.node("Softplus", x, name="soft"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)}


def expected(feed):
    x = 1 / (1 + np.exp(-feed["x"].astype(np.float64)))
    return [np.log1p(np.exp(x @ WEIGHT + np.linspace(-1, 1, 5))).astype(np.float32)]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#32228",
    kind="fusion",
    wrong="1.29.0",
    right="1.30.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"same", "dense"}),
    near=frozenset({"gate", "soft"}),
    optimizers=frozenset({"GemmTransposeFusion"}),
)
