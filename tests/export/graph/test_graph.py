"""`Graph`: its text, its cones, and the fields of its nodes."""

from dataclasses import replace

import onnx_ir as ir
import torch
from torch import nn

from filch.export import Graph, Node, Value, export, load_program, optimize, read_graph


class Attention(nn.Module):
    """The self-attention of hidet's document, small."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x):
        return torch.softmax(self.query(x), dim=-1)


def test_the_text_of_a_graph_has_a_line_for_each_constant_and_node():
    """The format is hidet's: the inputs in the first line, then constants, then nodes, then the results."""
    graph = export(Attention().eval(), (torch.zeros(1, 2, 8),)).graph

    text = graph.text()

    assert text.splitlines() == [
        "Graph(x: float32[1, 2, 8]){",
        "  query.weight = Constant(float32[8, 8])",
        "  query.bias = Constant(float32[8])",
        "  val_0: float32[8, 8] = Transpose(query.weight, perm=[1, 0])",
        "  val_1: float32[1, 2, 8] = MatMul(x, val_0)",
        "  linear: float32[1, 2, 8] = Add(val_1, query.bias)",
        "  softmax: float32[1, 2, 8] = Softmax(linear, axis=-1)",
        "  return softmax",
        "}",
    ]


def test_modules_and_source_lines_are_written_on_request():
    """They come from the metadata that the exporter recorded."""
    graph = export(Attention().eval(), (torch.zeros(1, 2, 8),)).graph

    lines = graph.text(modules=True, sources=True).splitlines()

    assert "# query, " in lines[5] and "linear.py:" in lines[5]
    assert "test_graph.py:" in lines[6]


def test_symbolic_dimensions_are_written_by_name():
    """A dynamic batch dimension has its name, not a number."""
    batch = torch.export.Dim("batch", min=1, max=9)

    graph = export(Attention().eval(), (torch.zeros(2, 2, 8),), dynamic_shapes={"x": {0: batch}}).graph

    assert str(graph.values[graph.inputs[0]]) == "float32[batch, 2, 8]"


def chain():
    """Return a graph of n1 (a → b), n3 (w → d) and n2 (b, d → c)."""
    nodes = (
        Node("n1", "Relu", ("a",), ("b",)),
        Node("n2", "Add", ("b", "d"), ("c",)),
        Node("n3", "Neg", ("w",), ("d",)),
    )
    ordered = (nodes[2], nodes[0], nodes[1])
    return Graph("chain", ("a",), ("c",), ("w",), ordered, {name: Value(name) for name in "abcdw"})


def test_a_cone_ends_at_the_values_that_stop_it():
    """One node computes c from b and d; three compute it from the inputs."""
    graph = chain()

    assert [node.name for node in graph.cone(["c"], frozenset({"b", "d"}))] == ["n2"]
    assert [node.name for node in graph.cone(["c"], frozenset())] == ["n3", "n1", "n2"]


def test_constant_values_do_not_depend_on_the_inputs():
    """They are the weights and the values computed from weights alone."""
    assert chain().constant_values == {"w", "d"}


def test_a_node_reads_what_its_subgraphs_capture():
    """A branch of an If that uses an outer value depends on it."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        outer (bool c, float[2] x) => (float[2] y) {
            h = Relu(x)
            y = If(c) <
                then_branch = t () => (float[2] a) { a = Neg(h) },
                else_branch = e () => (float[2] b) { b = Abs(h) }
            >
        }"""
    )
    from filch.export.graph._from_onnx import graph_from_onnx

    graph = graph_from_onnx(model)

    assert graph.producer["y"].reads == ("c", "h")
    assert [node.op for node in graph.consumers["h"]] == ["If"]


def test_nodes_without_names_are_given_unique_ones(tmp_path):
    """Rows and mappings identify nodes by name."""
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]> g (float[2] x) => (float[2] z) { y = Relu(x)
        z = Relu(y) }""")
    ir.save(model, tmp_path / "m.onnx")

    names = [node.name for node in load_program(tmp_path / "m.onnx").graph.nodes]

    assert len(set(names)) == 2
    assert all(names)


_KINDS = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
kinds (bool c, float[N, 2] x, seq(float[2]) s) => (y, z, bool last) <float[2] w = {1, 2}> {
    h = Relu(x)
    y = If(c) <
        then_branch = t () => (float[2] a) {
            i = Mul(h, w)
            a = If(c) <
                then_branch = u () => (float[2] d) { d = Add(i, x) },
                else_branch = v () => (float[2] e) { e = Identity(i) }
            >
        },
        else_branch = e () => (float[2] b) { k = Constant <value = float[2] {3, 4}> () b = Abs(k) }
    >
    z = local.Twice <times = 2.5, names = ["p", "q"]> (h, , w)
    at = Constant <value_int = 0> ()
    item = SequenceAt(s, at)
    last = Identity(c)
}
<opset_import: ["" : 18], domain: "local">
Twice <times: float = 1.0> (a, b, d) => (e) { f = Add(a, a) e = Mul(f, d) }
"""


def test_a_graph_read_without_its_program_is_the_same(tmp_path):
    """Checked for exported files, external weights, and a file with branches, functions and sequences."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU()).eval(), torch.randn(2, 4)
    program = export(model, (x,))
    program.save(tmp_path / "exported.onnx")
    optimize(program).save(tmp_path / "optimized.onnx")
    ir.save(program.model, tmp_path / "beside.onnx", external_data="beside.bin")
    ir.save(ir.from_onnx_text(_KINDS), tmp_path / "kinds.onnx")

    for path in tmp_path.glob("*.onnx"):
        graph = read_graph(path)
        assert graph == replace(load_program(path).graph, name=graph.name), path
    assert read_graph(tmp_path / "kinds.onnx").functions
