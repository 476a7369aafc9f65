"""A BatchNormalization is folded into a Gemm, whose beta multiplies the folded bias once more."""

import numpy as np

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart

RNG = np.random.default_rng(45)
WEIGHT, BIAS = RNG.normal(size=(6, 4)).astype(np.float32), RNG.normal(size=4).astype(np.float32)
SCALE, OFFSET, MEAN, SPREAD = (RNG.uniform(0.5, 2, 4).astype(np.float32) for _ in range(4))


def model(beta):
    graph = Graph(18)
    x = graph.node("Tanh", graph.input("x", [5, 6]), name="act")
    x = graph.node("Gemm", x, graph.constant("w", WEIGHT), graph.constant("b", BIAS), name="dense", beta=beta)
    values = {"scale": SCALE, "offset": OFFSET, "mean": MEAN, "spread": SPREAD}
    x = graph.node(
        "BatchNormalization", x, *[graph.constant(name, value) for name, value in values.items()], name="norm"
    )
    graph.output(graph.node("Sigmoid", x, name="gate"))
    return graph.model(), {"x": np.random.default_rng(46).normal(size=(5, 6)).astype(np.float32)}


def apply(graph, feed):
    import onnx
    from onnxscript import optimizer

    return optimizer.optimize(onnx.ModelProto.FromString(graph.SerializeToString()))


def distance(graph, feed):
    import onnxruntime

    beta = graph.graph.node[1].attribute[0].f
    x = np.tanh(feed["x"].astype(np.float64)) @ WEIGHT + beta * BIAS.astype(np.float64)
    x = (x - MEAN) / np.sqrt(SPREAD.astype(np.float64) + 1e-5) * SCALE + OFFSET
    session = onnxruntime.InferenceSession(apply(graph, feed).SerializeToString(), providers=["CPUExecutionProvider"])
    return apart(session.run(None, feed), [(1 / (1 + np.exp(-x))).astype(np.float32)])


BUG = ToolBug(
    issue="microsoft/onnxscript#3027",
    kind="onnxscript",
    make=lambda: model(3.0),
    harmless=lambda: model(1.0),
    distance=distance,
    operators="dense|norm|Gemm|BatchNormalization",
    near="gate",
    apply=apply,
    needs=("onnxscript==0.7.0",),
)
