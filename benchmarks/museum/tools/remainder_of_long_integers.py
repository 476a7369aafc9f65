"""OpenVINO computes the remainder of 64-bit integers in floating-point numbers, which lose the last digits."""

import numpy as np
import openvino

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart


def model(largest):
    graph = Graph(18)
    x = graph.node("Abs", graph.input("x", [4, 4], np.int64), name="size")
    x = graph.node("Mod", x, graph.constant("prime", np.array(17)), name="rest")
    graph.output(graph.node("Mul", x, graph.constant("three", np.array(3)), name="triple"), np.int64)
    return graph.model(), {"x": np.random.default_rng(50).integers(-largest, largest, (4, 4))}


def distance(graph, feed):
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(graph.SerializeToString()), "CPU")
    return apart([compiled(feed)[compiled.outputs[0]]], [np.abs(feed["x"]) % 17 * 3])


BUG = ToolBug(
    issue="openvinotoolkit/openvino#35829",
    kind="OpenVINO",
    make=lambda: model(2**31 - 1),
    harmless=lambda: model(2**12),
    distance=distance,
    operators="rest|Mod",
    near="triple",
    needs=("openvino==2026.4.1",),
)
