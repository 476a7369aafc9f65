"""The pass eliminate_consecutive_idempotent_ops removes a Reshape whose size the next one copies with a zero."""

import numpy as np

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart


def model(last):
    graph = Graph(17)
    x = graph.node("Reshape", graph.input("x", [2, 12]), graph.constant("wide", np.array([4, 3, 2])), name="split")
    x = graph.node("Reshape", x, graph.constant("last", np.array(last)), name="join")
    x = graph.node("Softmax", x, name="share", axis=-1)
    x = graph.node(
        "Reshape", graph.node("Sqrt", x, name="root"), graph.constant("flat", np.array([24])), name="flatten"
    )
    graph.output(x)
    return graph.model(), {"x": np.random.default_rng(44).normal(size=(2, 12)).astype(np.float32)}


def apply(graph, feed):
    import onnxoptimizer

    return onnxoptimizer.optimize(graph, ["eliminate_consecutive_idempotent_ops"])


def distance(graph, feed):
    import onnxruntime

    x = np.exp(feed["x"].astype(np.float64).reshape(4, 6))
    expected = np.sqrt(x / x.sum(-1, keepdims=True)).reshape(-1).astype(np.float32)
    session = onnxruntime.InferenceSession(apply(graph, feed).SerializeToString(), providers=["CPUExecutionProvider"])
    return apart(session.run(None, feed), [expected])


BUG = ToolBug(
    issue="onnx/optimizer#259",
    kind="onnxoptimizer",
    make=lambda: model([0, -1]),
    harmless=lambda: model([4, -1]),
    distance=distance,
    operators="split|join|Reshape",
    near="share",
    apply=apply,
    needs=("onnxoptimizer==0.4.2",),
)
