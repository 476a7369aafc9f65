"""The pass fuse_pad_into_pool gives a MaxPool the zeros of a Pad, which a MaxPool takes for minus infinity."""

import numpy as np
import torch

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart


def model(shift):
    graph = Graph(17)
    x = graph.node("Relu", graph.input("x", [1, 3, 5, 5]), name="act")
    x = graph.node("Add", x, graph.constant("shift", np.float32(shift)), name="move")
    x = graph.node("Pad", x, graph.constant("pads", np.array([0, 0, 0, 1, 0, 0, 2, 1])), name="pad")
    x = graph.node("MaxPool", x, name="peak", kernel_shape=[3, 2], strides=[2, 1])
    graph.output(graph.node("Tanh", x, name="squash"))
    return graph.model(), {"x": np.random.default_rng(42).normal(size=(1, 3, 5, 5)).astype(np.float32)}


def apply(graph, feed):
    import onnxoptimizer

    return onnxoptimizer.optimize(graph, ["fuse_pad_into_pool"])


def distance(graph, feed):
    import onnxruntime

    shift = float(np.frombuffer(graph.graph.initializer[0].raw_data, np.float32)[0])
    x = torch.nn.functional.pad(torch.relu(torch.tensor(feed["x"], dtype=torch.float64)) + shift, (1, 1, 0, 2))
    expected = torch.tanh(torch.nn.functional.max_pool2d(x, (3, 2), (2, 1))).float().numpy()
    session = onnxruntime.InferenceSession(apply(graph, feed).SerializeToString(), providers=["CPUExecutionProvider"])
    return apart(session.run(None, feed), [expected])


BUG = ToolBug(
    issue="onnx/optimizer#318",
    kind="onnxoptimizer",
    make=lambda: model(-4),
    harmless=lambda: model(0),
    distance=distance,
    operators="pad|peak|MaxPool",
    near="move|squash",
    apply=apply,
    needs=("onnxoptimizer==0.4.2",),
)
