"""A Transpose is moved behind a Resize, and scales are put in another order as if they had no axes of their own."""

import numpy as np

from museum._bug import OnnxBug
from museum._graphs import Graph


def make(axes=(3, 2, 1, 0), scales=(1, 3, 2, 1)):
    graph = Graph(18)
    x = graph.node("Transpose", graph.input("x", [1, 3, 4, 6]), name="last", perm=[0, 2, 3, 1])
    sizes = graph.constant("scales", np.array(scales, np.float32))
    way = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric", "axes": axes}
    x = graph.node("Resize", x, "", sizes, name="enlarge", **way)
    x = graph.node("Transpose", x, name="first", perm=[0, 3, 1, 2])
    ends = [graph.constant(name, np.array(value)) for name, value in (("start", [0, 0, 0, 0]), ("stop", [1, 3, 4, 6]))]
    graph.output(graph.node("Tanh", graph.node("Slice", x, *ends, name="corner"), name="squash"))
    return graph.model()


def inputs():
    return {"x": np.random.default_rng(28).normal(size=(1, 3, 4, 6)).astype(np.float32)}


def expected(feed):
    x = np.tanh(feed["x"].astype(np.float64))
    return [x.repeat(2, 2).repeat(3, 3)[..., :4, :6].astype(np.float32)]


def control():
    return make((0, 1, 2, 3), (1, 2, 3, 1)), inputs()


BUG = OnnxBug(
    issue="microsoft/onnxruntime#21954",
    kind="layout",
    wrong="1.32.0",
    right=None,
    make=make,
    inputs=inputs,
    expected=expected,
    nodes=frozenset({"enlarge", "last", "first"}),
    near=frozenset({"corner", "squash"}),
    optimizers=frozenset({"TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider"}),
    control=control,
)
