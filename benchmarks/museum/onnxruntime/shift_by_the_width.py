"""A BitShift of 64 bits by 64 keeps the number: the processor takes the lowest six bits of the amount."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make():
    graph = Graph(18)
    x, n = graph.input("x", [3, 4], np.uint64), graph.input("n", [3, 4], np.uint64)
    x = graph.node("Add", x, graph.constant("one", np.uint64(1)), name="next")
    x = graph.node("BitShift", x, n, name="halve", direction="RIGHT")
    graph.output(graph.node("Mul", x, graph.constant("three", np.uint64(3)), name="triple"), np.uint64)
    return graph.model()


def inputs():
    rng = np.random.default_rng(10)
    n = rng.integers(0, 5, (3, 4)).astype(np.uint64)
    n[0, 1] = n[2, 3] = 64
    return {"x": rng.integers(0, 1000, (3, 4)).astype(np.uint64), "n": n}


def expected(feed):
    shifted = [0 if n >= 64 else (int(x) + 1) >> int(n) for x, n in zip(feed["x"].flat, feed["n"].flat, strict=True)]
    return [np.array(shifted, np.uint64).reshape(3, 4) * np.uint64(3)]


BUG = OnnxBug(
    issue="microsoft/onnxruntime#28262",
    kind="integers",
    wrong="1.26.0",
    right="1.27.0",
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"halve"}),
    near=frozenset({"next", "triple"}),
)
