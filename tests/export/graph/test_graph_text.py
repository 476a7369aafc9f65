"""The text of an ONNX graph keeps similar names apart, and does not change the model."""

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from filch.export import Program, load_program

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
