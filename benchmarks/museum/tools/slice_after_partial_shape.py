"""The pass eliminate_slice_after_shape counts from the first axis, although Shape starts at a later one."""

import numpy as np

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart


def model(start):
    graph = Graph(18)
    sizes = graph.node("Shape", graph.input("x", [2, 3, 7]), name="sizes", start=start)
    ends = [graph.constant(name, np.array([value])) for name, value in (("from", 0), ("to", 1))]
    size = graph.node("Cast", graph.node("Slice", sizes, *ends, name="one"), name="float", to=1)
    graph.output(graph.node("Div", graph.node("Tanh", "x", name="act"), size, name="part"))
    return graph.model(), {"x": np.random.default_rng(43).normal(size=(2, 3, 7)).astype(np.float32)}


def apply(graph, feed):
    import onnxoptimizer

    return onnxoptimizer.optimize(graph, ["eliminate_slice_after_shape"])


def distance(graph, feed):
    import onnxruntime

    size = feed["x"].shape[graph.graph.node[0].attribute[0].i]
    expected = (np.tanh(feed["x"].astype(np.float64)) / size).astype(np.float32)
    session = onnxruntime.InferenceSession(apply(graph, feed).SerializeToString(), providers=["CPUExecutionProvider"])
    return apart(session.run(None, feed), [expected])


BUG = ToolBug(
    issue="onnx/optimizer#263",
    kind="onnxoptimizer",
    make=lambda: model(1),
    harmless=lambda: model(0),
    distance=distance,
    operators="sizes|one|float|Shape|Slice|Cast",
    near="part",
    apply=apply,
    needs=("onnxoptimizer==0.4.2",),
)
