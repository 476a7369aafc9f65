"""`load_quantized`: which weights of a model a file holds in a few bits, and which of its numbers are no rounding."""

import copy

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from filch.compare import load_quantized
from filch.compare.pairing._quantized import quantized_weight
from filch.export import as_program
from support.models.fused_llama import quantized


def product(*weights):
    """Return a file that multiplies by these weights of linear layers, joined and quantized."""
    joined = np.concatenate([weight.detach().numpy() for weight in weights]).T.copy()
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, joined.shape[0]]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, joined.shape[1]]),
    ]
    node = helper.make_node("MatMul", ["x", "weight"], ["y"], "product")
    graph = helper.make_graph([node], "product", values[:1], values[1:], [numpy_helper.from_array(joined, "weight")])
    return quantized(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def stored(file):
    """Return the weight that a file multiplies by, as that of a linear layer."""
    program = as_program(file)
    (node,) = program.graph.nodes
    return quantized_weight(node, program.constant).numbers.T


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.ModuleList([nn.Embedding(6, 32), nn.Linear(32, 6), nn.Linear(32, 4), nn.Linear(6, 32)])


def test_joined_weights_are_found_and_replaced(model):
    """The order is that of the file."""
    file = product(model[2].weight, model[1].weight)
    others = copy.deepcopy([model[0].weight, model[3].weight])
    assert load_quantized(model, file) == ("1 of 1 quantized weights of the program were given to the model",)
    assert torch.equal(torch.cat([model[2].weight, model[1].weight]), stored(file))
    assert all(torch.equal(*pair) for pair in zip(others, [model[0].weight, model[3].weight], strict=True))


def test_a_part_of_a_weight_and_a_transposed_one_are_found(model):
    """As where the file splits what the model joins, or the model stores the inputs first."""
    before = model[1].weight.detach().clone()
    file = product(before[2:5])
    load_quantized(model, file)
    assert torch.equal(model[1].weight[2:5], stored(file)) and torch.equal(model[1].weight[:2], before[:2])
    file = product(model[3].weight.T)
    load_quantized(model, file)
    assert torch.equal(model[3].weight.T, stored(file))


def test_an_embedding_that_shares_the_weight_keeps_its_own(model):
    """A file may have the table in full precision."""
    model[1].weight = model[0].weight
    before = model[0].weight.detach().clone()
    file = product(model[1].weight)
    load_quantized(model, file)
    assert torch.equal(model[1].weight, stored(file)) and torch.equal(model[0].weight, before)


def test_numbers_that_are_no_rounding_are_kept_and_counted(model):
    """A scale of a block is wrong."""
    before = model[1].weight.detach().clone()
    file = product(model[1].weight)
    (tensor,) = (tensor for tensor in file.graph.initializer if tensor.name == "weight_scales")
    scales = numpy_helper.to_array(tensor).copy()
    scales[3, 1] *= 2
    tensor.CopyFrom(numpy_helper.from_array(scales, tensor.name))
    (_, note) = load_quantized(model, file)
    assert "in the quantized weight of product_Q4 differ from the model's by more than quantization does" in note
    kept = model[1].weight != stored(file)
    assert 4 <= int(kept.sum()) == int(kept[3, 16:].sum())
    assert torch.equal(model[1].weight[kept], before[kept])


def test_an_unrelated_weight_is_reported(model):
    """Nothing is replaced."""
    before = copy.deepcopy(model.state_dict())
    notes = load_quantized(model, product(torch.randn(6, 32)))
    assert notes[1:] == ("the quantized weight of product_Q4 is none of the model's",)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_the_weight_is_the_one_that_onnxruntime_multiplies_by(bits, zeros):
    """With and without zero points, and a last block that is not full."""
    import onnxruntime as ort

    random = np.random.default_rng(0)
    size, count, block = 40, 5, 16
    blocks = -(-size // block)
    tensors = {
        "integers": random.integers(0, 256, (count, blocks, block * bits // 8), np.uint8),
        "scales": random.random((count, blocks), np.float32),
    }
    if zeros:
        tensors["zeros"] = random.integers(0, 256, (count, -(-blocks * bits // 8)), np.uint8)
    sizes = {"K": size, "N": count, "bits": bits, "block_size": block}
    node = helper.make_node("MatMulNBits", ["x", *tensors], ["y"], "product", domain="com.microsoft", **sizes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    stored_tensors = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph([node], "product", values[:1], values[1:], stored_tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    file = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": np.eye(size, dtype=np.float32)})
    torch.testing.assert_close(stored(file), torch.from_numpy(expected).T)


def test_a_damaged_weight_is_none(model):
    """Its numbers of bytes and of blocks contradict each other."""
    file = product(model[1].weight)
    (tensor,) = (tensor for tensor in file.graph.initializer if tensor.name == "weight_Q4")
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:-1].copy(), tensor.name))
    program = as_program(file)
    assert quantized_weight(program.graph.nodes[0], program.constant) is None
    assert load_quantized(model, file) == ()


def table_file(tensors, bits=4):
    """Return a file that takes rows of a quantized table; its integers are reshaped, as those that a product shares."""
    sizes = tensors["integers"].shape[0], -1
    reshape = helper.make_node("Reshape", ["integers", "sizes"], ["rows"])
    inputs = ["rows", "x", *[*tensors][1:]]
    settings = {"bits": bits, "block_size": 16, "quantize_axis": 1, "domain": "com.microsoft"}
    node = helper.make_node("GatherBlockQuantized", inputs, ["y"], "table", **settings)
    x = helper.make_tensor_value_info("x", TensorProto.INT64, None)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored_tensors = [numpy_helper.from_array(np.array(sizes), "sizes")]
    stored_tensors += [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph([reshape, node], "table", [x], [y], stored_tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_table_is_the_one_that_onnxruntime_takes_rows_of(model, bits, zeros):
    """It replaces that of the embedding; one of other numbers is reported."""
    import onnxruntime as ort

    random = np.random.default_rng(0)
    tensors = {
        "integers": random.integers(0, 256, (6, 2, 16 * bits // 8), np.uint8),
        "scales": random.random((6, 2), np.float32) + 0.5,
    }
    if zeros:
        tensors["zeros"] = random.integers(0, 256, (6, -(-2 * bits // 8)), np.uint8)
    file = table_file(tensors, bits)
    session = ort.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": np.arange(6)})
    assert load_quantized(model, file)[1:] == ("the quantized weight of table is none of the model's",)
    model[1].weight = model[0].weight
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(expected) + 0.01)
    before = model[1].weight.detach().clone()
    assert load_quantized(model, file) == ("1 of 1 quantized weights of the program were given to the model",)
    torch.testing.assert_close(model[0].weight.detach(), torch.from_numpy(expected))
    assert torch.equal(model[1].weight, before)
