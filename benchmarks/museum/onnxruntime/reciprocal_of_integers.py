"""A quotient 1 / n times m becomes m / n, which for integers is another number: 1 / 2 is 0."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make(dtype=np.int32):
    graph = Graph(18)
    n, m = graph.input("n", [2, 4], dtype), graph.input("m", [2, 4], dtype)
    n = graph.node("Abs", n, name="size")
    part = graph.node("Div", graph.constant("one", np.array(1, dtype)), n, name="part")
    part = graph.node("Mul", m, part, name="times")
    graph.output(graph.node("Add", part, graph.constant("seven", np.array(7, dtype)), name="shift"), dtype)
    return graph.model()


def inputs():
    return {
        "n": np.array([[1, -2, 3, -4], [5, 6, -1, 2]], np.int32),
        "m": np.array([[5, 8, 9, 12], [20, 3, 4, -6]], np.int32),
    }


def expected(feed):
    if feed["n"].dtype == np.int32:
        return [feed["m"] * (1 // np.abs(feed["n"])) + 7]
    return [(feed["m"] / np.abs(feed["n"].astype(np.float64)) + 7).astype(np.float32)]


def control():
    return make(np.float32), {name: value.astype(np.float32) for name, value in inputs().items()}


BUG = OnnxBug(
    issue="microsoft/onnxruntime#7183",
    kind="integers",
    wrong="1.32.0",
    right=None,
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"part", "times"}),
    near=frozenset({"size", "shift"}),
    optimizers=frozenset({"DivMulFusion"}),
    control=control,
)
