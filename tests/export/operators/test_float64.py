"""What operators compute in float64 is right to the digits of float64, not to those of float32."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx_ir import serde

from filch.export.evaluation._onnx_node import evaluate

WIDE = torch.linspace(-3, 3, 101, dtype=torch.float64)


def result(op, *inputs, opset=20, **attributes):
    """Return the first output of a node."""
    names = [f"x{index}" for index in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], "node", **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (*names, "y")]
    graph = helper.make_graph([node], "one", values[:-1], values[-1:])
    model = serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))
    value: torch.Tensor = evaluate(model, model.graph[0], dict(zip(names, inputs, strict=True)))["y"]
    return value


@pytest.mark.parametrize(
    ("op", "truth"),
    [
        ("Erf", math.erf),
        ("Gelu", lambda x: x * math.erfc(-x / math.sqrt(2)) / 2),
        ("Softplus", lambda x: math.log1p(math.exp(x))),
        ("Mish", lambda x: x * math.tanh(math.log1p(math.exp(x)))),
        ("Elu", lambda x: x if x > 0 else math.expm1(x)),
        ("Sigmoid", lambda x: 1 / (1 + math.exp(-x))),
    ],
)
@pytest.mark.parametrize("scale", [1, 12])
def test_functions(op, truth, scale):
    """Also far from zero, where 1 + erf(x) has no digits left."""
    x = WIDE * scale
    expected = torch.tensor([truth(item) for item in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(result(op, x), expected, rtol=1e-13, atol=1e-300)


def test_attributes_have_the_numbers_of_float32():
    """ONNX stores 0.01 as a float32 number, and its defaults are such numbers, too."""
    x = torch.tensor([-1.0], dtype=torch.float64)
    assert float(result("LeakyRelu", x)) == float(result("LeakyRelu", x, alpha=0.01)) == -float(np.float32(0.01))


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization_of_each_opset(opset):
    """It has had two further outputs, and a mode."""
    x, scale, bias, mean, variance = torch.randn(2, 3, 4, dtype=torch.float64), *torch.rand(4, 3, dtype=torch.float64)
    value = result("BatchNormalization", x, scale, bias, mean, variance, opset=opset, epsilon=0.5)
    by = [item.reshape(3, 1) for item in (scale, bias, mean, variance)]
    torch.testing.assert_close(value, (x - by[2]) / (by[3] + 0.5).sqrt() * by[0] + by[1], rtol=1e-13, atol=1e-13)


def test_sums_of_large_numbers_do_not_overflow():
    """Nor do those of infinities become NaN."""
    x = torch.tensor([[1000.0, 1001.0], [-math.inf, -math.inf]], dtype=torch.float64)
    value = result("ReduceLogSumExp", x, opset=13, axes=[1], keepdims=0)
    torch.testing.assert_close(value[0], torch.tensor(1001 + math.log1p(math.exp(-1)), dtype=torch.float64))
    assert value[1] == -math.inf


@pytest.mark.parametrize("step", [-1, -2])
def test_slices_backward(step):
    """To the start, which is before index 0."""
    x = torch.arange(7, dtype=torch.float64)
    ends, axes = torch.tensor([-(2**63) + 1]), torch.tensor([0])
    value = result("Slice", x, torch.tensor([-1]), ends, axes, torch.tensor([step]))
    assert value.tolist() == x.tolist()[::step]


def test_loops_and_what_they_capture():
    """Three steps of `total = total * factor`, and the total after each."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["total", "factor"], ["next"]),
            helper.make_node("Identity", ["next"], ["kept"]),
            helper.make_node("Identity", ["go"], ["goes"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("at", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("kept", TensorProto.FLOAT, []),
        ],
    )
    node = helper.make_node("Loop", ["count", "", "start"], ["end", "every"], "loop", body=body)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("start", "factor", "end")]
    count = helper.make_tensor_value_info("count", TensorProto.INT64, [])
    graph = helper.make_graph([node], "one", [count, *values[:2]], values[2:])
    model = serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    given = {"count": torch.tensor(3), "start": torch.tensor(1.0).double(), "factor": torch.tensor(0.1).double()}
    found = evaluate(model, model.graph[0], given)
    factor = float(np.float32(0.1))
    torch.testing.assert_close(found["every"], torch.tensor([factor, factor**2, factor**3], dtype=torch.float64))
    assert found["end"] == found["every"][-1]


def test_functions_of_the_model():
    """An attribute of the call has its value in the body."""
    inner = helper.make_node("LeakyRelu", ["x"], ["y"])
    reference = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    inner.attribute.append(reference)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Leaky", ["x"], ["y"], [inner], opsets[:1], ["slope"])
    node = helper.make_node("Leaky", ["a"], ["b"], "call", domain="own", slope=0.5)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "ab"]
    graph = helper.make_graph([node], "one", values[:1], values[1:])
    model = serde.deserialize_model(helper.make_model(graph, opset_imports=opsets, functions=[function]))
    found = evaluate(model, model.graph[0], {"a": torch.tensor([-1.0, 3.0], dtype=torch.float64)})
    assert found["b"].tolist() == [-0.5, 3.0]


def test_integers_that_torch_does_not_add():
    """Those of 32 bits without a sign are computed by the evaluator of the specification, exactly."""
    x = torch.tensor([2**32 - 1], dtype=torch.uint32)
    assert result("Sub", x, torch.tensor([1], dtype=torch.uint32)).tolist() == [2**32 - 2]


def test_what_is_not_known_has_no_value():
    """Neither another operator nor another version."""
    node = helper.make_node("Nothing", ["x"], ["y"], domain="own")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([node], "one", values[:1], values[1:])
    model = serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("own", 1)]))
    assert evaluate(model, model.graph[0], {"x": torch.ones(1, dtype=torch.float64)}) == {}
