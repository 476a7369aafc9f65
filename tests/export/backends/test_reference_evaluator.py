"""onnx's reference evaluator as a backend."""

import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper

from filch.export import BackendError, Program
from filch.export.backends import get_backend


def test_texts_are_no_values_of_the_reference_evaluator():
    """An honest program may have a text in it, which nothing compares."""
    nodes = [
        helper.make_node("Constant", [], ["text"], value_string="a"),
        helper.make_node("Cast", ["x"], ["written"], to=TensorProto.STRING),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    backend = get_backend("reference")
    compiled = backend.compile(Program(ir.from_proto(model)), optimize=False)

    found = backend.run(compiled, {"x": torch.tensor([-1.0, 2.0])}, ["text", "written"])

    assert {name: value.tolist() for name, value in found.items()} == {"y": [0, 2]}


def test_a_regular_expression_that_nothing_stops_is_refused():
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern="(a+)+$")
    ends = [helper.make_tensor_value_info("x", TensorProto.STRING, [1]), helper.make_tensor_value_info("y", 9, [1])]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)

    with pytest.raises(BackendError, match="runs RegexFullMatch by Python's re, which no time limit stops"):
        get_backend("reference").compile(Program(ir.from_proto(model)), optimize=False)
