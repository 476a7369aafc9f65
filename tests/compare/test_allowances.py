"""Rounding explains a difference by the numbers that a node adds, not by those that it multiplies or moves."""

import copy
from dataclasses import replace

import pytest
import torch
from onnx import numpy_helper
from onnx_ir import serde
from torch import nn

from filch.compare import compare
from filch.compare._allowances import Allowances
from filch.export import Node, export
from filch.export.backends import get_backend
from filch.steal import steal_forward

SCALE = 1e-6


class Scaled(nn.Module):
    """A branch with a layer scale, as ConvNeXt has it, and a kernel whose result is far smaller than its input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.full((16,), SCALE))

    def forward(self, x):
        return (self.linear(x) * self.scale).transpose(0, 1), torch.sigmoid(x) * SCALE


@pytest.fixture(scope="module")
def scaled():
    """What the model did, and its program."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model, x = Scaled().eval().requires_grad_(requires_grad=False), torch.randn(4, 16)
        with steal_forward(model, submodules=True) as capture:
            model(x)
    return capture, export(model, (x,))


def test_a_layer_scale_that_is_wrong_is_named_at_the_product(scaled):
    """Both numbers that go into it are near 1, and its result is off by 1e-8: not the transposition after it."""
    capture, program = scaled
    assert compare(capture, program).close
    model = serde.serialize_model(program.model)
    held = next(held for held in model.graph.initializer if held.name == "scale")
    held.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(held) * 1.01, "scale"))
    report = compare(capture, replace(program, model=serde.deserialize_model(model)), stages=("exported",))
    assert report.first_divergence.op == "Mul"
    assert report.first_divergence.difference.absolute < 1e-7


def zeroing(backend, value):
    """A backend that gives zeros for one value."""
    wrong = copy.copy(backend)

    def run(compiled, inputs, watch=()):
        found = dict(backend.run(compiled, inputs, watch))
        return {name: tensor * (name != value) for name, tensor in found.items()}

    vars(wrong)["run"] = run
    return wrong


def test_zeros_for_small_products_are_found_in_a_fused_kernel(scaled):
    """OpenVINO computes sigmoid(x) * 1e-6 in one layer; what it reads is a million times as large as the result."""
    pytest.importorskip("openvino", reason="backend 'openvino' needs pip install 'filch[openvino]'")
    capture, program = scaled
    backend, value = get_backend("openvino"), program.graph.outputs[-1]
    assert compare(capture, program, backend=backend).close
    report = compare(capture, program, backend=zeroing(backend, value))
    assert [row.value for row in report.diverged if row.kind != "output"] == [value]
    assert {"Sigmoid", "Mul"} <= {*report.first_divergence.operators}


SMALL = torch.full((4,), 1e-3)
LARGE = {"x": torch.full((4,), 8.0), "y": torch.full((4,), 8.0)}


def allowed(*nodes, reads=("x", "y"), constants=()):
    """What the rounding of a value is relative to that is 0.001, where what goes into it is 8."""
    node = Node("fused", "fused", reads, ("end",))
    judge = Allowances(lambda _: nodes, str, dict(constants).get)
    return judge.magnitude("end", node, LARGE, SMALL, SMALL + 1)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        *((op, 8.0) for op in ("Add", "Sub", "MatMul", "LayerNormalization", "ReduceMean", "Sin", "not known")),
        *((op, 1e-3) for op in ("Mul", "Div", "Transpose", "Reshape", "Identity", "Concat", "Tanh", "Where")),
        *((op, 8e-3) for op in ("Sigmoid", "Exp", "Softmax")),
    ],
)
def test_a_value_may_be_off_by_what_its_operator_rounds(op, expected):
    """A sum rounds what it adds, a product its result, an exponential as often as its exponent is large."""
    assert allowed(Node("a", op, ("x", "y"), ("end",))) == pytest.approx(expected)


def test_a_sum_that_is_scaled_in_the_same_kernel_is_rounded_to_scale():
    """(x - y) * 1e-2 is off by a hundredth of what x - y is off by; x * 1e-2 + y by what y is off by."""
    scale = {"c": torch.tensor(1e-2)}
    first = Node("a", "Sub", ("x", "y"), ("s",)), Node("b", "Mul", ("s", "c"), ("end",))
    assert allowed(*first, constants=scale) == pytest.approx(8e-2)
    then = Node("a", "Mul", ("x", "c"), ("s",)), Node("b", "Add", ("s", "y"), ("end",))
    assert allowed(*then, constants=scale) == pytest.approx(8.0)
    assert allowed(*then, reads=("x",), constants=scale) == pytest.approx(8e-2)


def test_what_is_moved_may_be_off_as_much_as_it_was_before():
    """The sum that it was made by had cancelled."""
    nodes = {"a": (Node("a", "Sub", ("x", "y"), ("s",)),), "b": (Node("b", "Transpose", ("s",), ("end",)),)}
    judge = Allowances(lambda node: nodes[node.name], str, lambda _: None)
    before = judge.magnitude("s", nodes["a"][0], LARGE, SMALL, SMALL + 1)
    assert judge.magnitude("end", nodes["b"][0], {"s": SMALL}, SMALL, SMALL + 1) == pytest.approx(before)
