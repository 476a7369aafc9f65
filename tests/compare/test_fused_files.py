"""Files of model builders: joined weights, fused operators, weights of 4 bits. All values are judged, faults named."""

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from filch.compare import compare, load_quantized, map_to_export
from filch.export import export
from filch.steal import steal_forward
from support.models.fused_llama import fused_onnx, quantized, tiny_llama

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
