"""OpenVINO adds 64-bit integers one after the other as 32-bit ones."""

import numpy as np
import openvino

from museum._bug import ToolBug
from museum._graphs import Graph
from museum._prove import distance as apart


def model(largest):
    graph = Graph(18)
    x = graph.node("Mul", graph.input("x", [3, 5], np.int64), graph.constant("two", np.array(2)), name="double")
    x = graph.node("CumSum", x, graph.constant("axis", np.array(1)), name="sums")
    graph.output(graph.node("Sub", x, graph.constant("one", np.array(1)), name="less"), np.int64)
    return graph.model(), {"x": np.random.default_rng(48).integers(1, largest, (3, 5))}


def distance(graph, feed):
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(graph.SerializeToString()), "CPU")
    return apart([compiled(feed)[compiled.outputs[0]]], [(feed["x"] * 2).cumsum(1) - 1])


BUG = ToolBug(
    issue="openvinotoolkit/openvino#35837",
    kind="OpenVINO",
    make=lambda: model(2**33),
    harmless=lambda: model(2**20),
    distance=distance,
    operators="double|sums|CumSum",
    near="less",
    needs=("openvino==2026.4.1",),
)
