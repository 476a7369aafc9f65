"""LpNormalization of onnx.reference with p=1 divides by the sum of the numbers, not of their sizes."""

import numpy as np
from onnx.reference import ReferenceEvaluator

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart


def model(p):
    graph = Graph(18)
    x = graph.node("Tanh", graph.input("x", [3, 5]), name="act")
    x = graph.node("LpNormalization", x, name="unit", axis=1, p=p)
    graph.output(graph.node("Exp", x, name="grow"))
    return graph.model(), {"x": np.random.default_rng(41).normal(size=(3, 5)).astype(np.float32)}


def distance(graph, feed):
    x = np.tanh(feed["x"].astype(np.float64))
    p = graph.graph.node[1].attribute[1].i
    x = x / (np.abs(x) ** p).sum(1, keepdims=True) ** (1 / p)
    return apart(ReferenceEvaluator(graph).run(None, feed), [np.exp(x).astype(np.float32)])


BUG = ToolBug(
    issue="onnx/onnx#8427",
    kind="onnx.reference",
    make=lambda: model(1),
    harmless=lambda: model(2),
    distance=distance,
    operators="unit|LpNormalization",
    near="grow",
)
