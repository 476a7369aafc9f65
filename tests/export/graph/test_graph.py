"""`Graph`: its text, its cones, the fields of its nodes, and the arguments of operator calls."""

from collections import OrderedDict, namedtuple
from dataclasses import replace

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper
from torch import fx, nn
from torch.utils import _pytree as pytree

from filch.export import Graph, Node, Program, Value, export, load_program, optimize, read_graph
from filch.export.graph._arguments import leaves_of, map_leaves, written_arguments


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


ONE = [1]


OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("loc", 1)]


def _model(nodes, inputs, outputs, functions=()):
    values = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ONE) for name in names]
              for names in (inputs, outputs)]  # fmt: skip
    graph = helper.make_graph(nodes, "g", *values)
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions)


@pytest.fixture
def dotted():
    """Return a model of unnamed nodes, with value names that differ only in a dot."""
    nodes = [
        helper.make_node("Relu", ["input.1"], ["a.b"]),
        helper.make_node("Neg", ["input_1"], ["a_b"]),
        helper.make_node("Add", ["a.b", "a_b"], ["out.1"]),
    ]
    return _model(nodes, ["input.1", "input_1"], ["out.1"])


def test_similar_names_stay_distinct_in_the_text(tmp_path, monkeypatch, dotted):
    """Each value has its own name where it is computed and where it is read; no external program is needed."""
    monkeypatch.setenv("PATH", "")
    onnx.save(dotted, tmp_path / "m.onnx")

    graph = load_program(tmp_path / "m.onnx").graph

    assert graph.text().splitlines() == [
        "Graph(input.1: float32[1], input_1: float32[1]){",
        "  a.b: ?[?] = Relu(input.1)",
        "  a_b: ?[?] = Neg(input_1)",
        "  out.1: float32[1] = Add(a.b, a_b)",
        "  return out.1",
        "}",
    ]
    assert graph.known == {"input.1", "input_1", "a.b", "a_b", "out.1"}
    assert all(name in graph.known for node in graph.nodes for name in node.reads)


def test_printing_a_graph_does_not_change_the_model(dotted):
    """Unnamed nodes stay unnamed; the graph has its own names for them."""
    model = ir.from_proto(dotted)
    before = ir.to_proto(model).SerializeToString()
    program = Program(model)

    names = [node.name for node in program.graph.nodes]
    text = f"{program.graph} {program.graph.text(modules=True, sources=True)} {program}"

    assert "a.b" in text
    assert len({*names, ""}) == 4
    assert [node.name or "" for node in model.graph] == ["", "", ""]
    assert ir.to_proto(model).SerializeToString() == before


def test_the_body_of_a_local_function_is_shown(tmp_path):
    """The text contains the function's nodes, not only its name."""
    function = helper.make_function("loc", "MyF", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], OPSETS[:1])
    nodes = [helper.make_node("MyF", ["x"], ["y"], domain="loc")]
    onnx.save(_model(nodes, ["x"], ["y"], [function]), tmp_path / "m.onnx")

    graph = load_program(tmp_path / "m.onnx").graph

    assert "Relu(" in graph.text()


Pair = namedtuple("Pair", ["first", "second"])  # noqa: PYI024  as operators return
TREES = {
    "a leaf": 1,
    "nothing": None,
    "empty": ([], (), {}),
    "nested": [torch.ones(1), (2, [None, "text", torch.float32]), {"b": 3.0, "a": [True, 1j]}],
    "other containers": [Pair(1, [2]), OrderedDict(x=3, y=(4,)), fx.immutable_collections.immutable_list([5, 6])],
    "other leaves": [torch.memory_format, slice(1, 2), object],
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_leaves_are_those_of_pytree(tree):
    """In the same order; what replaces them stands in containers of the same classes."""
    assert [*map(id, leaves_of(tree))] == [*map(id, pytree.tree_leaves(tree))]
    assert repr(map_leaves(lambda leaf: f"<{leaf}>", tree)) == repr(pytree.tree_map(lambda leaf: f"<{leaf}>", tree))


def test_written_arguments_are_those_of_the_schema():
    """Given by position or by name; a function without a schema is not known to write."""
    aten, x, y = torch.ops.aten, torch.ones(2), torch.ones(2)
    assert [*map(id, written_arguments(aten.add_.Tensor, (x, y), {}))] == [id(x)]
    assert [*map(id, written_arguments(aten.add.out, (x, x), {"out": y}))] == [id(y)]
    assert written_arguments(aten.add.Tensor, (x, y), {}) == []
    assert written_arguments(torch.add, (x, y), {}) == []
