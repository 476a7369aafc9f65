"""OpenVINO resizes with cubic curves as if antialias were not there."""

import numpy as np
import openvino
import torch

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart


def model(antialias):
    graph = Graph(18)
    x = graph.node("Tanh", graph.input("x", [1, 2, 8, 8]), name="act")
    sizes = graph.constant("sizes", np.array([1, 2, 4, 4]))
    attributes = {"mode": "cubic", "cubic_coeff_a": -0.5 if antialias else -0.75, "antialias": antialias}
    x = graph.node("Resize", x, "", "", sizes, name="shrink", exclude_outside=antialias, **attributes)
    graph.output(graph.node("Exp", x, name="grow"))
    return graph.model(), {"x": np.random.default_rng(47).normal(size=(1, 2, 8, 8)).astype(np.float32)}


def distance(graph, feed):
    antialias = bool(next(item.i for item in graph.graph.node[1].attribute if item.name == "antialias"))
    x = torch.tanh(torch.tensor(feed["x"], dtype=torch.float64))
    x = torch.nn.functional.interpolate(x, size=(4, 4), mode="bicubic", antialias=antialias)
    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(graph.SerializeToString()), "CPU", settings)
    return apart([compiled(feed)[compiled.outputs[0]]], [torch.exp(x).float().numpy()])


BUG = ToolBug(
    issue="openvinotoolkit/openvino#35893",
    kind="OpenVINO",
    make=lambda: model(1),
    harmless=lambda: model(0),
    distance=distance,
    operators="shrink|Resize|Interpolate",
    near="grow",
    needs=("openvino==2026.4.1",),
)
