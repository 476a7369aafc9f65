"""Rounding explains a difference by the numbers that a node adds, not by those that it multiplies or moves."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper
from onnx_ir import serde
from torch import nn

from filch.compare import compare
from filch.compare.engine._allowances import Allowances
from filch.export import Node, export
from filch.export.backends import get_backend
from support.models.small import capture_of, module_of

SCALE = 1e-6


def scaled_module():
    """A branch with a layer scale, as in ConvNeXt, and a kernel whose result is much smaller than its input."""
    return module_of(
        lambda self, x: ((self.linear(x) * self.scale).transpose(0, 1), torch.sigmoid(x) * SCALE),
        linear=nn.Linear(16, 16),
        scale=nn.Parameter(torch.full((16,), SCALE)),
    )


@pytest.fixture(scope="module")
def scaled():
    """Return a capture of the model, and its program."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model, x = scaled_module().eval().requires_grad_(requires_grad=False), torch.randn(4, 16)
        capture = capture_of(model, x, submodules=True)
    return capture, export(model, (x,))


def test_a_layer_scale_that_is_wrong_is_named_at_the_product(scaled):
    """Both factors are near 1 and the product is off by 1e-8; the transposition after it is not blamed."""
    capture, program = scaled
    assert compare(capture, program).close
    model = serde.serialize_model(program.model)
    held = next(held for held in model.graph.initializer if held.name == "scale")
    held.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(held) * 1.01, "scale"))
    report = compare(capture, replace(program, model=serde.deserialize_model(model)), stages=("exported",))
    assert report.first_divergence.op == "Mul"
    assert report.first_divergence.difference.absolute < 1e-7


def zeroing(backend, value):
    """Return a backend that returns zeros for one value."""
    wrong = copy.copy(backend)

    def run(compiled, inputs, watch=()):
        found = dict(backend.run(compiled, inputs, watch))
        return {name: tensor * (name != value) for name, tensor in found.items()}

    vars(wrong)["run"] = run
    return wrong


def test_zeros_for_small_products_are_found_in_a_fused_kernel(scaled):
    """OpenVINO computes sigmoid(x) * 1e-6 in one layer, whose inputs are a million times larger than its result."""
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
    """Return the magnitude of rounding for a value of size 0.001 with inputs of size 8."""
    node = Node("fused", "fused", reads, ("end",))
    judge = Allowances(lambda _: nodes, str, dict(constants).get)
    return judge.magnitude("end", node, LARGE, SMALL + 1, SMALL)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        *((op, 8.0) for op in ("Add", "Sub", "MatMul", "LayerNormalization", "ReduceMean", "Sin", "not known")),
        *((op, 1e-3) for op in ("Mul", "Div", "Transpose", "Reshape", "Identity", "Concat", "Tanh", "Where")),
        *((op, 8e-3) for op in ("Sigmoid", "Exp", "Softmax")),
    ],
)
def test_a_value_may_be_off_by_what_its_operator_rounds(op, expected):
    """A sum rounds its terms, a product its result, and an exponential in proportion to its exponent."""
    assert allowed(Node("a", op, ("x", "y"), ("end",))) == pytest.approx(expected)


def test_a_sum_that_is_scaled_in_the_same_kernel_is_rounded_to_scale():
    """(x - y) * 1e-2 has a hundredth of the rounding of x - y; x * 1e-2 + y has that of y."""
    scale = {"c": torch.tensor(1e-2)}
    first = Node("a", "Sub", ("x", "y"), ("s",)), Node("b", "Mul", ("s", "c"), ("end",))
    assert allowed(*first, constants=scale) == pytest.approx(8e-2)
    then = Node("a", "Mul", ("x", "c"), ("s",)), Node("b", "Add", ("s", "y"), ("end",))
    assert allowed(*then, constants=scale) == pytest.approx(8.0)
    assert allowed(*then, reads=("x",), constants=scale) == pytest.approx(8e-2)


def test_what_is_moved_may_be_off_as_much_as_it_was_before():
    """The sum that computes it has cancelled."""
    nodes = {"a": (Node("a", "Sub", ("x", "y"), ("s",)),), "b": (Node("b", "Transpose", ("s",), ("end",)),)}
    judge = Allowances(lambda node: nodes[node.name], str, lambda _: None)
    before = judge.magnitude("s", nodes["a"][0], LARGE, SMALL + 1, SMALL)
    assert judge.magnitude("end", nodes["b"][0], {"s": SMALL}, SMALL + 1, SMALL) == pytest.approx(before)


class Masked(nn.Module):
    """Attention with its mask as an input, then a selection by a comparison with a large number."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x, mask):
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        made = (scores + mask).softmax(-1) @ self.value(x)
        return torch.where(made > -1e9, made * 2.0, made * 0.5).tanh()


@pytest.fixture(scope="module")
def masked():
    """Return the program, and a function that captures a call with a mask."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x = Masked().eval(), torch.randn(2, 8, 16)

    return export(model, (x, torch.zeros(8, 8))), lambda mask: capture_of(model, x, mask, submodules=True)


@pytest.mark.parametrize("lowest", [-1e3, -1e4, -1e5, -1e9, float(torch.finfo(torch.float32).min)])
@pytest.mark.parametrize("fault", [1.003, 1.5])
def test_a_mask_does_not_explain_wrong_scores_beside_it(masked, lowest, fault):
    """This holds for the sum and for the values computed from it."""
    program, captured = masked
    capture = captured(torch.full((8, 8), lowest).triu(1))
    assert compare(capture, program).close
    wrong = serde.serialize_model(program.model)
    node = next(node for node in wrong.graph.node if node.op_type == "MatMul")
    scores, node.output[0] = node.output[0], "right"
    wrong.graph.initializer.append(numpy_helper.from_array(np.float32(fault), "fault"))
    place = [*wrong.graph.node].index(node)
    wrong.graph.node.insert(place + 1, helper.make_node("Mul", ["right", "fault"], [scores], "planted"))
    report = compare(capture, replace(program, model=serde.deserialize_model(wrong)), stages=("exported",))
    assert {"Add", "Softmax"} <= {row.op for row in report.diverged}
    assert any(row.kind == "output" for row in report.diverged)


def test_a_wrong_comparison_explains_nothing_after_it(masked):
    """Its inputs are large, but its result is not rounded."""
    program, captured = masked
    capture = captured(torch.zeros(8, 8))
    wrong = serde.serialize_model(program.model)
    next(node for node in wrong.graph.node if node.op_type == "Greater").op_type = "Less"
    report = compare(capture, replace(program, model=serde.deserialize_model(wrong)), stages=("exported",))
    assert [row.op for row in report.diverged] == ["Less", "Where", "Tanh", "Tanh"]
