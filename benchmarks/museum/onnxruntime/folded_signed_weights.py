"""Weights behind DequantizeLinear and Reshape of a constant are packed as unsigned integers: negative ones become 0."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph

WEIGHT = np.random.default_rng(24).integers(-100, 100, 32).astype(np.int8)
SCALE = np.float32(0.03)


def make():
    graph = Graph(18)
    x = graph.node("Tanh", graph.input("x", [3, 8]), name="act")
    w = graph.node("DequantizeLinear", graph.constant("w", WEIGHT), graph.constant("scale", SCALE), name="unpack")
    w = graph.node("Reshape", w, graph.constant("shape", np.array([8, 4])), name="fold")
    x = graph.node("MatMul", x, w, name="product")
    graph.output(graph.node("Sigmoid", x, name="gate"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(25).normal(size=(3, 8)).astype(np.float32)}


def expected(feed):
    x = np.tanh(feed["x"].astype(np.float64)) @ (WEIGHT * float(SCALE)).reshape(8, 4)
    return [(1 / (1 + np.exp(-x))).astype(np.float32)]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28491",
    kind="quantized",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"unpack", "fold"}),
    near=frozenset({"product"}),
    optimizers=frozenset({"QDQPropagationTransformer"}),
)
