"""ReduceMax keeps or drops a NaN depending on where it stands in a row."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x = graph.node("Sqrt", graph.input("x", [5, 7]), name="root")
    top = graph.node("ReduceMax", x, graph.constant("axes", np.array([-1])), name="top", keepdims=0)
    graph.output(graph.node("Softplus", top, name="soft"))
    return graph.model()


def inputs():
    x = np.random.default_rng(4).uniform(0.5, 4, size=(5, 7)).astype(np.float32)
    x[0, 0] = x[1, 3] = x[2, 6] = x[3, 1] = -1
    x[4, :3] = -1
    return {"x": x}


def expected(feed):
    with np.errstate(invalid="ignore"):
        return [np.log1p(np.exp(np.sqrt(feed["x"].astype(np.float64)).max(-1))).astype(np.float32)]


def control():
    return make(), {"x": np.abs(inputs()["x"])}


BUG = OnnxBug(
    issue="microsoft/onnxruntime#10514",
    kind="NaN",
    wrong="1.32.0",
    right=None,
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"top"}),
    near=frozenset({"root", "soft"}),
    control=control,
)
