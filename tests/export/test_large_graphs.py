"""The cost of large graphs grows linearly with the number of nodes."""

import gc

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from filch.compare.engine._node_outcomes import node_outcomes
from filch.compare.provenance._provenance import NodeProvenance
from filch.export import Graph, Node, load_program
from filch.export.backends import Compiled
from support.processes.forked import run_python
from support.thorough import slow


def _chain(nodes):
    return [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(nodes)]


def _plus(nodes):
    return [helper.make_node("Add", [f"v{i}", "w"], [f"v{i + 1}"], name=f"n{i}") for i in range(nodes)]


def _residual(nodes):
    return [helper.make_node("Mul", [f"v{i}", f"v{max(i - 1, 0)}"], [f"v{i + 1}"], name=f"n{i}") for i in range(nodes)]


def _fan_out(nodes):
    made = [helper.make_node("Mul", ["v0", "w"], [f"b{i}"], name=f"n{i}") for i in range(nodes - 1)]
    return [*made, helper.make_node("Sum", [f"b{i}" for i in range(nodes - 1)], [f"v{nodes}"], name="sum")]


def _saved(nodes, path):
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("v0", f"v{len(nodes)}"))
    first, last = ends
    held = [numpy_helper.from_array(np.ones(2, np.float32), "w")]
    graph = helper.make_graph(nodes, "large", [first], [last], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


_COUNT = """
import sys

def calls(of):
    count = 0
    def see(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")
    sys.setprofile(see)
    try:
        of()
    finally:
        sys.setprofile(None)
    return count
"""

_SHOW = """
from filch.export import load_program, read_graph

def show(path):
    assert read_graph(path).text(modules=True) == load_program(path).graph.text(modules=True)

show(sys.argv[1])  # imports
print(*(calls(lambda: show(path)) for path in sys.argv[2:]))
"""

_COMPARE = """
import torch
from torch import nn
from filch.compare import compare
from filch.steal import steal_forward

class Plus(nn.Module):
    def forward(self, x):
        return x + torch.ones(2)

def counted(path, module):
    model = nn.Sequential(*(module() for _ in range(int(path.rpartition("-")[2][:-5]))))
    with steal_forward(model, submodules=True) as capture:
        model(torch.tensor([0.5, 2.0]))
    def check():
        report = compare(capture, path)
        assert not report.diverged
        assert all(row.resolution == "inferred" for row in report.modules if row.side == "output")
        assert len(report.rows) > 2 * len(model)
        report.to_markdown()
    return calls(check)

counted(sys.argv[1], nn.ReLU)  # imports
print(*(counted(path, Plus if "plus" in path else nn.ReLU) for path in sys.argv[2:]))
"""

# Each node is off by itself, so each is asked for what was removed on the way; no value but the last has its name.
_ORIGINS = """
from filch.compare.engine._node_outcomes import node_outcomes
from filch.compare.provenance._provenance import NodeProvenance
from filch.export import Graph, Node
from filch.export.backends import Compiled

def residual(count):
    nodes = [Node(f"n{i}", "Mul", (f"v{i}", f"v{max(i - 1, 0)}"), (f"v{i + 1}",)) for i in range(count)]
    return Graph("g", ("v0",), (f"v{count}",), (), tuple(nodes), {})

def covered(count):
    graph = residual(count)
    origins = NodeProvenance(graph, Compiled(graph, None))
    assert all([item.name for item in origins.covers(node, node.outputs[0])] == [node.name] for node in graph.nodes)
    node_outcomes(origins)

def renamed(count):
    graph = residual(count)
    other = {f"v{i}": f"buf{i}" for i in range(1, count)}
    nodes = (
        Node(n.name, n.op, tuple(other.get(x, x) for x in n.inputs), tuple(other.get(x, x) for x in n.outputs))
        for n in graph.nodes
    )
    origins = NodeProvenance(graph, Compiled(Graph("g", graph.inputs, graph.outputs, (), tuple(nodes), {}), None))
    assert all(f"n{count - 1}" in origins.unmapped_reason(name) for name in other.values())

covered(10), renamed(10)
print(*(calls(lambda: made(count)) for made in (covered, renamed) for count in (1000, 2000)))
"""

_OPTIMIZE = """
from filch.export import load_program, optimize

optimize(load_program(sys.argv[1]))  # imports
print(*(calls(lambda: optimize(load_program(path))) for path in sys.argv[2:]))
"""


def _counted(script, *arguments):
    """Return the numbers of calls of Python and C functions for some nodes and for twice as many.

    They are counted in a process of their own: a profile function does not bear the frame evaluation of torch.compile.
    """
    done = run_python("-c", _COUNT + script, *arguments)
    assert done.returncode == 0, done.stderr
    counts = [int(count) for count in done.stdout.split()]
    return [*zip(counts[::2], counts[1::2], strict=True)]


@slow
def test_a_graph_is_read_and_written_as_text_in_linear_time(tmp_path):
    first = _saved(_chain(100), tmp_path / "first.onnx")
    paths = [
        _saved(make(size), tmp_path / f"{make.__name__}{size}.onnx")
        for make in (_chain, lambda nodes: _chain(nodes)[::-1], _residual, _fan_out)
        for size in (1000, 2000)
    ]
    for few, many in _counted(_SHOW, first, *paths):
        assert few > 1000
        assert many / few < 2.2


@slow
def test_a_graph_is_compared_in_linear_time(tmp_path):
    """Values are matched by value: in one model all are equal, in the other all differ."""
    first = _saved(_chain(100), tmp_path / "first-100.onnx")
    paths = [
        _saved(make(size), tmp_path / f"{make.__name__}-{size}.onnx") for make in (_chain, _plus) for size in (300, 600)
    ]
    for few, many in _counted(_COMPARE, first, *paths):
        assert few > 1000
        assert many / few < 2.2


@slow
def test_a_graph_is_optimized_in_linear_time(tmp_path):
    """Also by onnxscript's rules for patterns of several outputs, for each of which it reads all nodes."""
    paths = [_saved(_plus(size), tmp_path / f"{size}.onnx") for size in (100, 400, 800)]
    ((few, many),) = _counted(_OPTIMIZE, *paths)
    assert few > 1000
    assert many / few < 2.2


def test_origins_are_found_in_linear_time():
    for few, many in _counted(_ORIGINS):
        assert few > 1000
        assert many / few < 2.2


def test_the_collector_does_not_run_while_a_graph_is_read(tmp_path):
    """It would visit millions of objects again and again; afterwards it is enabled again."""
    path = _saved(_chain(3000), tmp_path / "m.onnx")
    seen = []

    def see(phase, info):
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
    """If each of 64 values is read by two nodes, there are 2**64 paths to the last one."""
    depth = 64
    twice = [Node(f"m{i}", "Mul", (f"v{i}", f"v{i}"), (f"u{i}",)) for i in range(depth)]
    added = [Node(f"n{i}", "Add", (f"v{i}", f"u{i}"), (f"v{i + 1}",)) for i in range(depth)]
    joined = tuple(node for pair in zip(twice, added, strict=True) for node in pair)
    end = Node("end", "Add", ("x", f"v{depth}"), ("y",))
    exported = Graph("g", ("x",), ("y",), ("v0",), (*joined, end), {})
    compiled = Graph("g", ("x",), ("y",), (f"v{depth}",), (end,), {})
    outcomes = {outcome.node: outcome for outcome in node_outcomes(NodeProvenance(exported, Compiled(compiled, None)))}
    assert outcomes["m0"].kind == "folded"
    assert outcomes["m0"].into == ("end",)
