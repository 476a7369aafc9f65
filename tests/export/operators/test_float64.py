"""What operators of ONNX and of ONNX Runtime compute in float64 is right to the digits of float64."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper
from onnx_ir import serde

from filch.export.evaluation._onnx_node import evaluate
from support.models.small import onnx_model
from support.versions import since

WIDE = torch.linspace(-3, 3, 101, dtype=torch.float64)


def parsed(text):
    """Return the model of the text of a graph."""
    return serde.deserialize_model(onnx_model(text))


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


@pytest.mark.parametrize(("opset", "dtype"), [(7, torch.float64), (9, torch.float64), (10, torch.bool)])
def test_the_mask_of_dropout_has_the_type_of_its_opset(opset, dtype):
    """It is a floating-point tensor before operator set 10."""
    node = helper.make_node("Dropout", ["x"], ["y", "mask"], "node")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    graph = helper.make_graph([node], "one", values[:1], values[1:])
    model = serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))
    outputs = evaluate(model, model.graph[0], {"x": WIDE})
    assert outputs["mask"].dtype == dtype
    assert bool((outputs["mask"] == 1).all())


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
    model = parsed("""(int64 count, float start, float factor) => (float end) {
        end, every = Loop(count, , start) <body = step (int64 at, bool go, float total)
            => (bool goes, float next, float kept) {
                next = Mul(total, factor) kept = Identity(next) goes = Identity(go)
            }>
    }""")
    given = {"count": torch.tensor(3), "start": torch.tensor(1.0).double(), "factor": torch.tensor(0.1).double()}
    found = evaluate(model, model.graph[0], given)
    factor = float(np.float32(0.1))
    torch.testing.assert_close(found["every"], torch.tensor([factor, factor**2, factor**3], dtype=torch.float64))
    assert found["end"] == found["every"][-1]


def test_functions_of_the_model():
    """An attribute of the call has its value in the body."""
    model = parsed("""(float[2] a) => (float[2] b) { b = own.Leaky<slope = 0.5>(a) }
        <domain: "own", opset_import: ["": 20]> Leaky<slope>(x) => (y) { y = LeakyRelu<alpha: float = @slope>(x) }""")
    found = evaluate(model, model.graph[0], {"a": torch.tensor([-1.0, 3.0], dtype=torch.float64)})
    assert found["b"].tolist() == [-0.5, 3.0]


def test_integers_that_torch_does_not_add():
    """Those of 32 bits without a sign are computed by the evaluator of the specification, exactly."""
    x = torch.tensor([2**32 - 1], dtype=torch.uint32)
    assert result("Sub", x, torch.tensor([1], dtype=torch.uint32)).tolist() == [2**32 - 2]


def test_what_is_not_known_has_no_value():
    """Neither another operator nor another version."""
    model = parsed("(float[1] x) => (float[1] y) { y = own.Nothing(x) }")
    assert evaluate(model, model.graph[0], {"x": torch.ones(1, dtype=torch.float64)}) == {}


RANDOM = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def numbers(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def integers(*rows):
    return np.array(rows, np.int32)


def both(op, inputs, outputs=1, domain=MICROSOFT, **attributes):
    """Return what ONNX Runtime computes, and the outputs in float64 by name."""
    given = {f"x{index}": array for index, array in enumerate(inputs) if array is not None}
    reads = ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]
    made = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, reads, made, "node", domain=domain, **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    results = [helper.make_value_info(name, helper.make_tensor_type_proto(0, None)) for name in made]
    for result in results:
        result.ClearField("type")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(helper.make_graph([node], "one", values, results), opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wide = {
        name: torch.as_tensor(array.astype(np.float64) if array.dtype == np.float32 else array)
        for name, array in given.items()
    }
    ir_model = serde.deserialize_model(model)
    return session.run(made, given), evaluate(ir_model, ir_model.graph[0], wide)


def check(op, inputs, outputs=1, domain=MICROSOFT, **attributes):
    """Check that both compute the same."""
    native, exact = both(op, inputs, outputs, domain, **attributes)
    assert [*exact] == [f"y{index}" for index in range(outputs)]
    for array, value in zip(native, exact.values(), strict=True):
        assert value.dtype in {torch.float64, torch.int32}
        np.testing.assert_allclose(array, value.numpy(), rtol=2e-5, atol=2e-5)


X, W, V = numbers(2, 5, 8), numbers(8), numbers(8)
IMAGE, KERNEL = numbers(1, 4, 7, 6), numbers(6, 2, 3, 3)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("transposed", [0, 1])
def test_products(batch, transposed):
    """Also with operands whose batch dimension comes after the rows."""
    left = numbers(3, 2, 4, 5) if not batch else numbers(4, 3, 2, 5)
    left = left.swapaxes(-2, -1) if transposed and not batch else left
    if not (batch and transposed):
        check("FusedMatMul", [left, numbers(3, 2, 5, 6)], alpha=0.5, transA=transposed, transBatchA=batch)
    other = numbers(3, 2, 6, 5) if transposed else numbers(3, 2, 5, 6)
    check("FusedMatMul", [numbers(3, 2, 4, 5), other], alpha=2.0, transB=transposed)


def test_products_with_an_activation():
    """The activation is the last step."""
    for activation in ("Relu", "Tanh", "Sigmoid"):
        check("FusedGemm", [numbers(5, 8), numbers(6, 8), numbers(6)], transB=1, alpha=0.7, activation=activation)
        check("FusedConv", [IMAGE, KERNEL, numbers(6)], activation=activation, group=2, pads=[1, 0, 2, 1])
    settings = {"activation": "LeakyRelu", "activation_params": [0.3], "group": 2, "strides": [2, 1]}
    check("FusedConv", [IMAGE, KERNEL], **settings)
    check("FusedConv", [IMAGE, KERNEL, numbers(6), numbers(1, 6, 5, 4)], activation="Relu", group=2)
    check("FusedGemm", [numbers(5, 8), numbers(8, 6)], activation="LeakyRelu", activation_alpha=0.2)


def test_activations():
    """Three approximations of one function."""
    check("Gelu", [X])
    check("Gelu", [X], domain="", approximate="tanh")
    check("BiasGelu", [X, W])
    check("FastGelu", [X])
    check("FastGelu", [X, W])
    check("QuickGelu", [X], alpha=1.0)


def test_norms_that_add_the_residual():
    """With another epsilon, and with and without biases."""
    check("SimplifiedLayerNormalization", [X, W], domain="", epsilon=1e-3, axis=-1)
    check("SkipSimplifiedLayerNormalization", [X, X * 2, W], epsilon=1e-3)
    check("SkipLayerNormalization", [X, numbers(2, 5, 8), W, V, numbers(8)], epsilon=1e-3)
    check("SkipLayerNormalization", [X, numbers(2, 5, 8), W], epsilon=1e-3)


def test_embeddings():
    """The sum of tables, with and without segments."""
    ids, segments = integers([1, 2, 0], [4, 3, 3]), integers([0, 0, 1], [1, 1, 1])
    tables = [numbers(6, 8), numbers(4, 8), numbers(2, 8), W, V]
    mask = integers([1, 1, 1], [1, 1, 0])
    check("EmbedLayerNormalization", [ids, segments, *tables, mask], outputs=2, epsilon=1e-4)
    check("EmbedLayerNormalization", [ids, None, *tables[:2], None, *tables[3:]], outputs=2, epsilon=1e-4)


def test_elements_that_are_gathered():
    """More than NumPy's `choose` takes, with indices and axis from the end."""
    check("GatherElements", [numbers(2, 3, 40), integers(range(-40, 3)).reshape(1, 1, 43)], domain="", axis=-1)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotations(interleaved):
    """In either form of the input, of all numbers of a head or the first ones."""
    cosines, sines = numbers(9, 4), numbers(9, 4)
    ids = integers([0, 1, 2, 3, 4], [2, 3, 4, 5, 6]).astype(np.int64)
    check("RotaryEmbedding", [numbers(2, 3, 5, 8), ids, cosines, sines], interleaved=interleaved)
    check("RotaryEmbedding", [numbers(2, 5, 24), np.array([2]), cosines, sines], interleaved=interleaved)
    part = {"num_heads": 3, "rotary_embedding_dim": 8, "interleaved": interleaved}
    check("RotaryEmbedding", [numbers(2, 5, 30), ids, cosines, sines], **part)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"local_window_size": 2}, marks=since("onnxruntime", "1.24", "a window has one more token")),
        {"softcap": 2.0, "scale": 0.3},
        {"rotary_interleaved": 1},
    ],
)
@pytest.mark.parametrize(("batch", "past"), [(2, 0), (1, 3)])
def test_attention_of_grouped_queries(batch, past, options):
    """With keys and values of earlier tokens, a window, a cap and rotation."""
    pasts, tables = [numbers(batch, 2, past, 16), numbers(batch, 2, past, 16)], [numbers(9, 8), numbers(9, 8)]
    last, length = np.full(batch, past + 4, np.int32), np.array(past + 5, np.int32)
    heads = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, **options}
    parts = [numbers(batch, 5, 64), numbers(batch, 5, 32), numbers(batch, 5, 32)]
    for queries in ([numbers(batch, 5, 128), None, None], parts):
        check("GroupQueryAttention", [*queries, *pasts, last, length, *tables], outputs=3, **heads)


@pytest.mark.parametrize("left_out", [1, 3])
def test_inputs_at_the_end_that_are_written_and_left_out(left_out):
    """ONNX Runtime GenAI 0.18 writes empty names of inputs that later versions of an operator have."""
    none = [None] * left_out
    query, pasts, tables = numbers(1, 5, 128), [numbers(1, 2, 0, 16)] * 2, [numbers(9, 8)] * 2
    last, length = np.full(1, 4, np.int32), np.array(5, np.int32)
    heads = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    check("GroupQueryAttention", [query, None, None, *pasts, last, length, *tables, *none], outputs=3, **heads)
    check("FastGelu", [numbers(3, 4), *none[:1]])
    check("Clip", [numbers(3, 4), np.array(0, np.float32), *none[:1]], domain="")


def test_attention_of_several_heads():
    """With a bias, masks and earlier tokens."""
    query, key, value = numbers(2, 5, 12), numbers(2, 7, 12), numbers(2, 7, 12)
    mask = integers([1] * 7, [1] * 4 + [0] * 3)
    check("MultiHeadAttention", [query, key, value], num_heads=3)
    check("MultiHeadAttention", [query, key, value, numbers(36), mask], num_heads=3, scale=0.4)
    check("MultiHeadAttention", [query, key, value, None, None, numbers(2, 3, 5, 7)], num_heads=3)
    check("MultiHeadAttention", [query, query, query * 2], num_heads=3, unidirectional=1)
    pasts = [numbers(2, 3, 2, 4), numbers(2, 3, 2, 4)]
    check("MultiHeadAttention", [query, query, query * 2, None, None, None, *pasts], outputs=3, num_heads=3)
    weight, bias = numbers(12, 36), numbers(36)
    check("Attention", [query, weight, bias], num_heads=3)
    check("Attention", [query, weight, bias, mask[:, :5]], num_heads=3, unidirectional=1)


def test_what_is_not_supported_has_no_results():
    """An option that is not known."""
    ids, tables = np.arange(10).reshape(2, 5) % 5, [numbers(9, 4), numbers(9, 4)]
    _, exact = both("RotaryEmbedding", [numbers(2, 3, 5, 8), ids, *tables], scale=0.5)
    assert exact == {}
