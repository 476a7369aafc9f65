"""Files with fused nodes and quantized weights, judged by the model that they were made from."""

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from filch.compare import compare, load_quantized, map_to_export
from filch.compare.pairing._quantized import quantized_weight
from filch.export import as_program, export
from filch.steal import steal_forward
from support.models.fused_llama import fused_onnx, quantized, tiny_llama
from support.models.small import onnx_model
from support.thorough import slow
from support.versions import since

MASK = {"count", "last", "past"}  # integers for an operator, which the model does not have


def recorded(model, args, kwargs):
    """Return the exported model and a capture of one call."""
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args, **kwargs)
    return export(model, args, kwargs), capture


@pytest.fixture(scope="module")
def fused():
    model, args, kwargs = tiny_llama()
    return fused_onnx(model), *recorded(model, args, kwargs)


@pytest.fixture(scope="module")
def four_bits(fused):
    model, args, kwargs = tiny_llama()
    file = quantized(fused[0])
    notes = load_quantized(model, file)
    return file, notes, *recorded(model, args, kwargs)


def edit(file, name, change):
    """Return a copy of a file with another weight."""
    changed = copy.deepcopy(file)
    (tensor,) = (tensor for tensor in changed.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor).copy()
    tensor.CopyFrom(numpy_helper.from_array(change(array), name))
    return changed


def with_attribute(file, node, name, value):
    """Return a copy of a file with another attribute of a node."""
    changed = copy.deepcopy(file)
    (found,) = (item for item in changed.graph.node if item.name == node)
    found.attribute.remove(next(item for item in found.attribute if item.name == name))
    found.attribute.append(onnx.helper.make_attribute(name, value))
    return changed


def moved_down(table):
    """Return a table with the rows from 2 on of the position before."""
    return np.concatenate([table[:2], table[1:-1]])


def scaled_column(weight):
    """Return a weight with one wrong column."""
    weight[:, 5] *= 1.1
    return weight


def larger_scale(scales):
    """Return the scales of blocks with one that is too large."""
    scales[5, 1] *= 1.5
    return scales


def keys_first(weight):
    """Return joined weights of queries (32), keys and values in another order."""
    return weight[:, [*range(32, 48), *range(32), *range(48, 64)]]


def copied(file):
    """Return a file in which an activation returns what it reads."""
    changed = copy.deepcopy(file)
    (node,) = (node for node in changed.graph.node if node.name == "layer0.silu")
    node.op_type = "Identity"
    del node.input[1]
    return changed


FAULTS = {
    "copy": ("layer0.silu", copied),
    "positions": ("layer0.attention", lambda file: edit(file, "cos", moved_down)),
    "epsilon": ("layer0.norm2", lambda file: with_attribute(file, "layer0.norm2", "epsilon", 1e-3)),
    "scale": ("layer0.attention", lambda file: with_attribute(file, "layer0.attention", "scale", 0.3)),
    "column": ("layer0.gate", lambda file: edit(file, "layer0.gate.weight", scaled_column)),
    "order": ("layer0.qkv", lambda file: edit(file, "layer0.qkv.weight", keys_first)),
}


def judged(report):
    """Return the names of the values that were judged, and check that only those of the mask were not."""
    rows = [row for row in report.rows if row.kind in ("node", "fused")]
    assert {row.value for row in rows if not row.judged} <= MASK
    return {row.value for row in rows if row.judged}


@slow
def test_all_values_of_a_sound_file_are_judged_by_float64(fused):
    """A joined product, attention with rotary embeddings, and both results of a norm with a residual."""
    file, exported, capture = fused
    report = compare(capture, map_to_export(file, exported, capture), stages=("exported",))
    assert report.close, str(report)
    assert {"layer0.qkv.out", "layer0.heads", "layer0.norm2.out", "layer0.norm2.sum"} <= judged(report)
    assert "inferred" not in {row.evidence for row in report.rows}
    joined = next(row for row in report.rows if row.value == "layer0.qkv.out")
    assert joined.evidence == "derived" and joined.float64.verdict == "rounding"


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named_and_all_values_behind_it_are_judged(fused, kind):
    """Later nodes are right by themselves: what they read is replaced by the model's values."""
    file, exported, capture = fused
    node, plant = FAULTS[kind]
    report = compare(capture, map_to_export(plant(file), exported, capture), stages=("exported",))
    assert report.first_divergence.node == node
    judged(report)
    assert {row.node for row in report.rows if row.introduced} == {node}


def test_joined_weights_may_be_in_any_order_if_the_outputs_are_right(fused):
    """As where the operator that reads them takes keys before queries."""
    file, exported, capture = fused
    other = edit(file, "layer0.qkv.weight", keys_first)
    (attention,) = (node for node in other.graph.node if node.name == "layer0.attention")
    sizes = onnx.helper.make_node("Split", ["layer0.qkv.out", "sizes"], ["k", "q", "v"], axis=-1)
    order = onnx.helper.make_node("Concat", ["q", "k", "v"], ["ordered"], axis=-1)
    attention.input[0] = "ordered"
    place = [*other.graph.node].index(attention)
    other.graph.node.insert(place, order)
    other.graph.node.insert(place, sizes)
    other.graph.initializer.append(numpy_helper.from_array(np.array([16, 32, 16]), "sizes"))
    report = compare(capture, map_to_export(other, exported, capture), stages=("exported",))
    assert report.close, str(report)
    assert {"layer0.qkv.out", "k", "q", "v", "ordered"} <= judged(report)


@slow
def test_a_file_of_4_bits_is_judged_by_a_model_with_the_same_weights(four_bits):
    """What is left is the rounding of the operand of products to 8 bits."""
    file, notes, exported, capture = four_bits
    assert notes == ("6 of 6 quantized weights of the program were given to the model",)
    program = map_to_export(file, exported, capture, lower_precision=True)
    report = compare(capture, program, stages=("exported",), lower_precision=True, every_node=True)
    assert report.close, str(report)
    judged(report)
    products = [row for row in report.rows if row.op == "com.microsoft::MatMulNBits" and row.kind == "node"]
    assert {row.float64.verdict for row in products} == {"rounding"} == {row.isolated.verdict for row in products}


def test_a_small_fault_in_a_file_of_4_bits_is_found_by_its_node_alone(four_bits):
    """In the whole run, rounding to 8 bits hides it."""
    file, _, exported, capture = four_bits
    wrong = with_attribute(file, "layer0.norm2", "epsilon", 1e-3)
    program = map_to_export(wrong, exported, capture, lower_precision=True)
    report = compare(capture, program, stages=("exported",), lower_precision=True, every_node=True)
    assert {row.node for row in report.rows if row.introduced} == {"layer0.norm2"}


@since("onnxruntime", "1.24", "scales are a vector")
def test_a_wrong_scale_of_a_block_is_named(four_bits):
    """The model has the numbers of the sound file."""
    file, _, exported, capture = four_bits
    wrong = edit(file, "layer0.gate.weight_scales", larger_scale)
    program = map_to_export(wrong, exported, capture, lower_precision=True)
    report = compare(capture, program, stages=("exported",), lower_precision=True, every_node=True)
    assert {row.node for row in report.rows if row.introduced} == {"layer0.gate_Q4"}


def test_a_file_of_4_bits_is_judged_by_the_tolerance_of_quantization_otherwise(fused, four_bits):
    """The references are those of the model with its own weights."""
    _, exported, capture = fused
    program = map_to_export(four_bits[0], exported, capture, lower_precision=True)
    report = compare(capture, program, stages=("exported",), lower_precision=True)
    assert report.close, str(report)
    judged(report)


def product(*weights):
    """Return a file that multiplies by these weights of linear layers, joined and quantized."""
    joined = np.concatenate([weight.detach().numpy() for weight in weights]).T.copy()
    rows, columns = joined.shape
    file = onnx_model(f"(float[1, {rows}] x) => (float[1, {columns}] y) {{ [product] y = MatMul(x, weight) }}", 18)
    file.graph.initializer.append(numpy_helper.from_array(joined, "weight"))
    return quantized(file)


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


@since("onnxruntime", "1.24", "scales are a vector")
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
    rows = tensors["integers"].shape[0]
    file = onnx_model(
        f"(int64 x) => (float y) <int64[2] sizes = {{{rows}, -1}}> {{ rows = Reshape(integers, sizes) "
        f"[table] y = com.microsoft.GatherBlockQuantized<bits = {bits}, block_size = 16, quantize_axis = 1>"
        f"(rows, x, {', '.join([*tensors][1:])}) }}",
        18,
    )
    for value in (*file.graph.input, *file.graph.output):
        value.type.tensor_type.ClearField("shape")
    file.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    return file


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
