"""What graphs of many nodes cost grows with their number, and not faster."""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from filch.compare._fates import fates_of
from filch.compare._origins import Origins
from filch.export import Graph, Node, load_program
from filch.export.backends import Compiled


def _chain(nodes: int) -> list[onnx.NodeProto]:
    return [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(nodes)]


def _backwards(nodes: int) -> list[onnx.NodeProto]:
    return _chain(nodes)[::-1]


def _residual(nodes: int) -> list[onnx.NodeProto]:
    return [helper.make_node("Mul", [f"v{i}", f"v{max(i - 1, 0)}"], [f"v{i + 1}"], name=f"n{i}") for i in range(nodes)]


def _fan_out(nodes: int) -> list[onnx.NodeProto]:
    made = [helper.make_node("Mul", ["v0", "w"], [f"b{i}"], name=f"n{i}") for i in range(nodes - 1)]
    return [*made, helper.make_node("Sum", [f"b{i}" for i in range(nodes - 1)], [f"v{nodes}"], name="sum")]


def _saved(nodes: list[onnx.NodeProto], path: Path) -> Path:
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("v0", f"v{len(nodes)}"))
    first, last = ends
    held = [numpy_helper.from_array(np.ones(2, np.float32), "w")]
    graph = helper.make_graph(nodes, "large", [first], [last], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


_COUNT = """
import sys
from filch.export import load_program, read_graph

def show(path):
    assert read_graph(path).text(modules=True) == load_program(path).graph.text(modules=True)

def calls(path):
    count = 0
    def see(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")
    sys.setprofile(see)
    try:
        show(path)
    finally:
        sys.setprofile(None)
    return count

show(sys.argv[1])  # imports
print(*map(calls, sys.argv[2:]))
"""


def test_a_graph_is_read_and_written_as_text_in_linear_time(tmp_path):
    """Twice the nodes take twice the calls of functions, Python's and C's.

    They are counted in a process of their own: a profile function does not bear the frame evaluation of torch.compile.
    """
    sizes = (1000, 2000)
    first = _saved(_chain(100), tmp_path / "first.onnx")
    paths = [
        _saved(make(size), tmp_path / f"{make.__name__}{size}.onnx")
        for make in (_chain, _backwards, _residual, _fan_out)
        for size in sizes
    ]
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, first, *paths], capture_output=True, text=True, check=True, timeout=300
    )
    counts = [int(count) for count in done.stdout.split()]
    assert all(few > 1000 for few in counts)
    assert all(many / few < 2.2 for few, many in zip(counts[::2], counts[1::2], strict=True))


def test_the_collector_does_not_run_while_a_graph_is_read(tmp_path):
    """It would visit each of millions of objects again and again; afterwards it is on, as it was."""
    path = _saved(_chain(3000), tmp_path / "m.onnx")
    seen = []

    def see(phase: str, info: object) -> None:
        seen.append(phase)

    program = load_program(path)
    gc.collect()
    gc.callbacks.append(see)
    try:
        graph = program.graph
        during = len(seen)
    finally:
        gc.callbacks.remove(see)
    assert len(graph.nodes) == 3000
    assert during <= 2  # one collection, when it is on again
    assert gc.isenabled()


def test_what_folded_nodes_went_into_is_counted_once():
    """Where each of 64 values is read by two nodes, there are two to the power of 64 ways to the last one."""
    depth = 64
    twice = [Node(f"m{i}", "Mul", (f"v{i}", f"v{i}"), (f"u{i}",)) for i in range(depth)]
    added = [Node(f"n{i}", "Add", (f"v{i}", f"u{i}"), (f"v{i + 1}",)) for i in range(depth)]
    joined = tuple(node for pair in zip(twice, added, strict=True) for node in pair)
    end = Node("end", "Add", ("x", f"v{depth}"), ("y",))
    exported = Graph("g", ("x",), ("y",), ("v0",), (*joined, end), {})
    compiled = Graph("g", ("x",), ("y",), (f"v{depth}",), (end,), {})
    fates = {fate.node: fate for fate in fates_of(Origins(exported, Compiled(compiled, None)))}
    assert fates["m0"].how == "folded"
    assert fates["m0"].into == ("end",)
