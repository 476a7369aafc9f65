"""Erf of NaN is 1: the minimum that limits its argument returns the limit."""

import numpy as np
import torch

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.node("Log", graph.input("x", [3, 8]), name="log")
    x = graph.node("Erf", x, name="erf")
    graph.output(graph.node("Sub", x, graph.constant("half", np.float32(0.5)), name="center"))
    return graph.model()


def inputs():
    x = np.random.default_rng(5).uniform(0.2, 3, size=(3, 8)).astype(np.float32)
    x[0, 2] = x[1, 7] = x[2, 0] = -0.5
    return {"x": x}


def expected(feed):
    return [(torch.erf(torch.log(torch.tensor(feed["x"], dtype=torch.float64))) - 0.5).float().numpy()]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28462",
    kind="NaN",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"erf"}),
    near=frozenset({"log", "center"}),
)
