"""LRN of onnx.reference counts channels up to the size of the batch: those behind are not normalized."""

import numpy as np
import torch
from onnx.reference import ReferenceEvaluator

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart

SIZE, ALPHA, BETA = 5, 0.8, 0.6


def model(batch):
    graph = Graph(18)
    x = graph.node("Exp", graph.input("x", [batch, 4, 3, 2]), name="grow")
    x = graph.node("LRN", x, name="norm", size=SIZE, alpha=ALPHA, beta=BETA, bias=2.0)
    graph.output(graph.node("Sigmoid", x, name="gate"))
    return graph.model(), {"x": np.random.default_rng(40).normal(size=(batch, 4, 3, 2)).astype(np.float32)}


def distance(graph, feed):
    x = torch.exp(torch.tensor(feed["x"], dtype=torch.float64))
    expected = torch.sigmoid(torch.nn.functional.local_response_norm(x, SIZE, ALPHA, BETA, 2.0)).float().numpy()
    return apart(ReferenceEvaluator(graph).run(None, feed), [expected])


BUG = ToolBug(
    issue="onnx/onnx#7805",
    kind="onnx.reference",
    make=lambda: model(1),
    harmless=lambda: model(4),
    distance=distance,
    operators="norm|LRN",
    near="gate",
)
