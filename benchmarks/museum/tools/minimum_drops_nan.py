"""OpenVINO's Minimum of NaN and a number is the number, if NaN comes first."""

import numpy as np
import openvino
import torch

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart


def model(shift):
    graph = Graph(18)
    x, y = graph.input("x", [2, 6]), graph.input("y", [2, 6])
    x = graph.node("Sqrt", x, name="root")
    x = graph.node("Min", x, y, name="least")
    graph.output(graph.node("Exp", x, name="grow"))
    rng = np.random.default_rng(49)
    return graph.model(), {name: (rng.uniform(0, 2, (2, 6)) + shift).astype(np.float32) for name in "xy"}


def distance(graph, feed):
    x, y = (torch.tensor(feed[name], dtype=torch.float64) for name in "xy")
    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(graph.SerializeToString()), "CPU", settings)
    expected = torch.exp(torch.minimum(torch.sqrt(x), y)).float().numpy()
    return apart([compiled(feed)[compiled.outputs[0]]], [expected])


BUG = ToolBug(
    issue="openvinotoolkit/openvino#35839",
    kind="OpenVINO",
    make=lambda: model(-1),
    harmless=lambda: model(1),
    distance=distance,
    operators="least|Min",
    near="root|grow",
    needs=("openvino==2026.4.1",),
)
