"""What measures, describes and prints does so for any value, and changes none: D32 to D34 (see `test_defects.py`)."""

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from filch.compare import compare_tensors, diff
from filch.export import Program, load_program
from filch.steal import describe, steal_forward

NAN, INF = float("nan"), float("inf")
LARGEST = torch.finfo(torch.float64).max


def _doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


DIFFERENT = {
    "imaginary parts": (torch.tensor([1 + 1j]), torch.tensor([1 + 9j])),
    "imaginary parts of numpy's": (torch.from_numpy(np.array([1 + 1j])), torch.from_numpy(np.array([1 + 9j]))),
    "NaN and 1e10": (_doubles(NAN), _doubles(1e10)),
    "1e10 and NaN": (_doubles(1e10), _doubles(NAN)),
    "NaN at different places": (_doubles(NAN, 1.0), _doubles(1.0, NAN)),
    "inf and the largest number": (_doubles(INF), _doubles(LARGEST)),
    "inf and -inf": (_doubles(INF), _doubles(-INF)),
    "integers that float64 rounds to one": (torch.tensor([2**53]), torch.tensor([2**53 + 1])),
    "dtypes": (torch.ones(1, dtype=torch.float16), torch.ones(1)),
    "shapes": (torch.ones(1), torch.tensor(1.0)),
    "shapes of nothing": (torch.empty(0, 3), torch.empty(3, 0)),
    "None and a tensor": (None, torch.ones(1)),
    "a tensor and None": (torch.ones(1), None),
    "float8": (torch.ones(1).to(torch.float8_e4m3fn), torch.full((1,), 2.0).to(torch.float8_e4m3fn)),
    "booleans": (torch.tensor([True]), torch.tensor([False])),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_d32_values_that_differ_are_said_to_differ(name):
    """With a reason, or with an error that is not 0."""
    expected, actual = DIFFERENT[name]

    found = compare_tensors(expected, actual)

    assert not found.close
    assert found.problem or (found.absolute > 0 and found.error_max > 0 and found.mismatched)


def test_d32_the_error_of_complex_numbers_is_that_of_both_parts():
    """1+1j is 8 away from 1+9j."""
    assert compare_tensors(*DIFFERENT["imaginary parts of numpy's"]).absolute == 8


@pytest.mark.parametrize("value", [_doubles(NAN, 1.0), _doubles(INF, -INF), torch.empty(0), torch.tensor([2**53 + 1])])
def test_d32_values_that_are_equal_are_close(value):
    """NaN and infinities at the same places among them."""
    found = compare_tensors(value, value.clone())

    assert found.close
    assert found.absolute == 0


@pytest.mark.parametrize(("first", "second", "close"), [("a", "b", False), ("a", "a", True), (None, "a", False)])
def test_d32_what_is_no_tensor_is_compared_too(first, second, close):
    """A string that differs is a difference between two captures, not an error."""

    def stolen(value):
        module = nn.Identity()
        with steal_forward(("m", module)) as capture:
            module([torch.ones(1), value])
        return capture

    found = diff(stolen(first), stolen(second))

    assert found.close == close
    assert all("'a'" in row.what + row.reason for row in found.diverged)


class Opaque:
    """An object of a class that nobody knows."""


@pytest.mark.parametrize(
    ("value", "statistics", "text"),
    [
        (torch.ones(1).to(torch.float8_e4m3fn), False, r"f8e4m3fn\[1\]"),
        (1 + 2j, False, r"\(1\+2j\)"),
        ([1j, torch.ones(1)], False, r"\[1j, f32\[1\]\]"),
        (Opaque(), False, r".*Opaque.*"),
        ({"a": Opaque(), "b": torch.ones(1)}, False, r"\{a: .*Opaque.*, b: f32\[1\]\}"),
        (torch.float16, False, r"float16"),
        (torch.tensor([1, 3], dtype=torch.uint16), True, r"u16\[2\] 1 … 3, mean 2"),
        (torch.tensor([NAN, 1.0, 3.0]), True, r"f32\[3\] 1 … 3, mean 2, 1 NaN"),
        (torch.tensor([NAN]), True, r"f32\[1\] 1 NaN"),
        (torch.tensor([1.0, 3.0]).to(torch.float8_e5m2), True, r"f8e5m2\[2\] 1 … 3, mean 2"),
    ],
)
def test_d33_any_value_has_a_description(value, statistics, text):
    """NaNs are counted, and no part of the statistics of the other numbers."""
    assert re.fullmatch(text, describe(value, statistics=statistics))


ONE = [1]
OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("loc", 1)]


def _model(nodes, inputs, outputs, functions=()):
    values = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ONE) for name in names]
              for names in (inputs, outputs)]  # fmt: skip
    graph = helper.make_graph(nodes, "g", *values)
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions)


@pytest.fixture
def dotted():
    """A model of unnamed nodes whose values' names differ in a dot alone."""
    nodes = [
        helper.make_node("Relu", ["input.1"], ["a.b"]),
        helper.make_node("Neg", ["input_1"], ["a_b"]),
        helper.make_node("Add", ["a.b", "a_b"], ["out.1"]),
    ]
    return _model(nodes, ["input.1", "input_1"], ["out.1"])


def test_d34_names_that_look_alike_stay_apart_in_the_text_of_a_graph(tmp_path, monkeypatch, dotted):
    """Each value is written as it is called where it is made and where it is read; no program of others is needed."""
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


def test_d34_reading_and_printing_a_graph_does_not_write_into_the_model(dotted):
    """Nodes without a name have none afterwards; the names that rows need are the graph's own."""
    model = ir.from_proto(dotted)
    before = ir.to_proto(model).SerializeToString()
    program = Program(model)

    names = [node.name for node in program.graph.nodes]
    text = f"{program.graph} {program.graph.text(modules=True, sources=True)} {program}"

    assert "a.b" in text
    assert len({*names, ""}) == 4
    assert [node.name or "" for node in model.graph] == ["", "", ""]
    assert ir.to_proto(model).SerializeToString() == before


def test_d34_a_local_function_is_shown(tmp_path):
    """By what it computes, not by its name alone."""
    function = helper.make_function("loc", "MyF", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], OPSETS[:1])
    nodes = [helper.make_node("MyF", ["x"], ["y"], domain="loc")]
    onnx.save(_model(nodes, ["x"], ["y"], [function]), tmp_path / "m.onnx")

    graph = load_program(tmp_path / "m.onnx").graph

    assert "Relu(" in graph.text()
