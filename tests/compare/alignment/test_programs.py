"""Tests of ONNX programs as implementations: here a plain export of a small decoder, without names and metadata."""

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from filch.compare import CompareError, ValueMap, align
from filch.export import Program, export
from support.models.fused_llama import fused_onnx, tiny_llama
from support.models.plain_onnx import renamed, saved_by_onnxruntime
from support.models.port import port
from support.models.small import capture_of
from support.processes.commands import run
from support.thorough import slow

TOKENS = port()[2][0]
LAYER = 1  # has the planted fault


@pytest.fixture(scope="module")
def model():
    return port()[0]


@pytest.fixture(scope="module")
def program(model):
    """Return the program, whose nodes say where in the model they are."""
    exported = torch.onnx.export(model, (TOKENS,), dynamo=True, verbose=False)
    assert exported is not None
    return exported.model_proto


def node_of(program, op, index):
    return [node for node in program.graph.node if node.op_type == op][index]


def wrong_bias(program):
    """Change a number of the bias of `layers.1.up`."""
    bias = next(tensor for tensor in program.graph.initializer if tensor.name == f"layers.{LAYER}.up.bias")
    numbers = numpy_helper.to_array(bias).copy()
    numbers[3] += 0.1
    bias.CopyFrom(numpy_helper.from_array(numbers, bias.name))
    return next(node for node in program.graph.node if bias.name in node.input)


def wrong_epsilon(program):
    norm = node_of(program, "LayerNormalization", 2 * LAYER)
    next(item for item in norm.attribute if item.name == "epsilon").f = 1e-3
    return norm


def wrong_activation(program):
    gelu = node_of(program, "Gelu", LAYER)
    gelu.attribute.append(helper.make_attribute("approximate", "tanh"))
    return gelu


def wrong_residual(program):
    """Add the norm of the input in place of the input."""
    norm = node_of(program, "LayerNormalization", 2 * LAYER)
    add = next(node for node in program.graph.node if node.op_type == "Add" and norm.input[0] in node.input)
    add.input[:] = [norm.output[0] if name == norm.input[0] else name for name in add.input]
    return add


def wrong_axis(program):
    softmax = node_of(program, "Softmax", LAYER)
    softmax.attribute[0].i = 2
    return softmax


FAULTS = [wrong_bias, wrong_residual, wrong_axis]


def faulty(program, *faults):
    """Return a program with faults, without names, and the values that they change first."""
    changed = copy.deepcopy(program)
    outputs = [fault(changed).output[0] for fault in faults]
    made = renamed(changed)
    names = dict(
        zip(
            (name for node in changed.graph.node for name in node.output),
            (name for node in made.graph.node for name in node.output),
            strict=True,
        )
    )
    return made, [names[output] for output in outputs]


def departures(result):
    return [departure.value for departure in result.departures]


@slow
def test_a_correct_program_is_aligned_completely(model, program):
    """All weights and module outputs are found; where metadata say in which module, and where they don't."""
    result = align(model, program, TOKENS)
    assert result.close, result
    assert result.departures == result.wrong_outputs == result.remarks == ()
    assert all(weight.complete for weight in result.weights)
    assert {value.module: value.modules[0] for value in result.values}["layers.1.norm_1"] == "layers.1.norm_1"
    assert {value.module for value in result.values} >= {"embed", "layers.2.attention.key", "head", ""}
    result = align(model, renamed(program), TOKENS)
    assert result.close, result
    assert all(value.places for value in result.values)


@slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_its_node(model, program, fault):
    """B leaves A at the value of this node, and nowhere else."""
    wrong, values = faulty(program, fault)
    result = align(model, wrong, TOKENS)
    assert not result.close
    assert departures(result) == values
    missing = [weight.name for weight in result.weights if not weight.complete]
    assert len(missing) == (fault is wrong_bias)
    assert result.unused_weights == ((f"layers.{LAYER}.up.bias",) if missing else ())


@slow
def test_two_faults_are_both_named(model, program):
    """The program runs again with the numbers of A behind the first one."""
    wrong, values = faulty(program, wrong_epsilon, wrong_activation)
    result = align(model, wrong, TOKENS)
    assert departures(result) == values
    assert result.departures[0].note == "eps is 0.001, 1e-05 in A"


@slow
def test_a_program_may_be_the_reference(model, program):
    """With the same result, and with modules of the metadata."""
    _, b, args = port()
    result = align(program, b, args)
    assert result.close, result
    assert {value.module: value.places for value in result.values}["layers.1.attention.query"] == ("blocks.1.qkv",)
    wrong = port({LAYER: "epsilon"})[1]
    result = align(program, wrong, {"tokens": TOKENS}, args)
    assert [departure.module for departure in result.departures] == [f"blocks.{LAYER}.ln1"]


@slow
def test_two_programs_get_drawn_inputs(program, tmp_path, capsys):
    """On the command line, too, where a wrong one exits with 1."""
    onnx.save(program, tmp_path / "a.onnx")
    wrong, values = faulty(program, wrong_activation)
    onnx.save(wrong, tmp_path / "b.onnx")
    assert run("align", str(tmp_path / "a.onnx"), str(tmp_path / "a.onnx")) == 0
    assert "the inputs were drawn with seed 0" in capsys.readouterr().out
    assert run("align", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")) == 1
    output = capsys.readouterr().out
    assert "Gelu" in output
    assert values[0] in output


@slow
def test_modules_of_an_export_are_known(model):
    """A program that Filch has exported says what modules return, so that a mapping can name them."""
    exported = export(model, (TOKENS,))
    result = align(model, exported, TOKENS)
    assert result.close, result
    values = ValueMap.of(result).values
    assert {name: values[name].place for name in ("layers.1.attention", "norm")} == {
        "layers.1.attention": "layers.1.attention.output",
        "norm": "norm",
    }
    assert align(model, Program(exported.model), TOKENS, mapping=ValueMap.of(result)).close


def test_weights_and_arrays_of_a_program(model, program, tmp_path):
    """A checkpoint is compared with the weights, and a capture with the values; a dump is no program."""
    state = model.state_dict()
    assert align(dict(state), program).close
    wrong, _ = faulty(program, wrong_bias)
    assert f"'layers.{LAYER}.up.bias' of A" in align(dict(state), wrong).wrong_outputs[0]
    path = tmp_path / "run.onnx"
    capture_of(model, TOKENS, submodules=True, dump_file=path)
    assert align(path, program, actual_args=TOKENS.numpy()).close
    result = align(wrong, path, {"tokens": TOKENS})
    assert [departure.module for departure in result.departures] == [f"layers.{LAYER}.up"]


def test_constants_of_nodes_are_weights():
    """Some exporters have no initializers."""
    layer = nn.Linear(6, 4)
    arrays = layer.weight.detach().T.contiguous().numpy(), layer.bias.detach().numpy()
    nodes = [
        *(
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))
            for name, array in zip("wb", arrays, strict=True)
        ),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Add", ["y", "b"], ["z"]),
    ]
    made = program_of(nodes)
    result = align(layer, made, torch.randn(3, 6))
    assert result.close, result
    assert {weight.name: weight.complete for weight in result.weights} == {"w": True, "b": True}


@slow
def test_a_file_that_onnxruntime_has_optimized_is_evaluated(model, program):
    """It has fused operators, which ONNX does not define."""
    fused = saved_by_onnxruntime(program)
    norm = node_of(fused, "SkipLayerNormalization", -1)
    assert "FusedMatMul" in {node.op_type for node in fused.graph.node}
    result = align(model, fused, TOKENS)
    assert result.close, result
    next(item for item in norm.attribute if item.name == "epsilon").f = 1e-3
    assert departures(align(model, fused, TOKENS)) == [norm.output[0]]


def test_a_file_of_a_model_builder_is_evaluated():
    """Attention of grouped queries with rotation is one operator there."""
    llama, args, kwargs = tiny_llama()
    fused = fused_onnx(llama)
    result = align(llama, fused, args, kwargs=kwargs)
    assert result.close, result
    (attention,) = (node for node in fused.graph.node if node.op_type == "GroupQueryAttention")
    next(item for item in attention.attribute if item.name == "scale").f = 0.3
    assert departures(align(llama, fused, args, kwargs=kwargs)) == [attention.output[0]]


def program_of(nodes, *inputs):
    """Return a program that computes `z` of shape [3, 4] from `x` of shape [3, 6]."""
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
        for names, shape in ((("x", *inputs), [3, 6]), (("z",), [3, 4]))
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "plain", *ends), opset_imports=opsets, ir_version=10)


def test_what_can_not_be_run_is_refused(program):
    """Inputs that are missing or do not fit, and operators that have no meaning in float64."""
    layer, x = nn.Linear(6, 4), torch.randn(3, 6)
    with pytest.raises(CompareError, match=r"takes tokens: int64\[2, 7\], but the inputs have f32\[3, 6\]"):
        align(layer, program, x)
    two = program_of([helper.make_node("Sum", ["x", "y"], ["z"])], "y")
    with pytest.raises(CompareError, match=r"takes an input 'x', but the inputs have input"):
        align(layer, two, x)
    with pytest.raises(CompareError, match="needs inputs to be run: x, y"):
        align({"x": np.ones((3, 6))}, two, weights_only=False)
    weight = numpy_helper.from_array(layer.weight.detach().numpy(), "w")
    fused = program_of([helper.make_node("CDist", ["x", "w"], ["z"], name="n", domain="com.microsoft")])
    fused.graph.initializer.append(weight)
    with pytest.raises(CompareError, match=r"'n' \(com.microsoft::CDist\), which computes 'z', can't be"):
        align(layer, fused, x)


@slow
def test_other_precisions_are_remarked_on(program):
    """Rounded weights have other numbers, which are no fault of the program."""
    model = port()[0].half()
    result = align(model, program, TOKENS)
    assert not result.close
    assert any("A in float16 and B in float32" in remark for remark in result.remarks)


def test_a_program_with_inputs_for_a_past_is_aligned_with_a_module_that_has_none():
    """They are empty, as for `map_to_export`, and a remark says so."""
    model = nn.Linear(8, 4).eval()
    past = helper.make_tensor_value_info("past.0.key", TensorProto.FLOAT, ["past", 4])
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("input", [3, 8]), ("y", None))
    )
    weights = [numpy_helper.from_array(item.detach().numpy(), name) for name, item in model.named_parameters()]
    nodes = [helper.make_node("Gemm", ["input", "weight", "bias"], ["key"], "gemm", transB=1)]
    nodes.append(helper.make_node("Concat", ["past.0.key", "key"], ["y"], "concat", axis=0))
    graph = helper.make_graph(nodes, "main", [past, x], [y], weights)
    program = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    result = align(model, program, torch.randn(3, 8))

    assert result.close, str(result)
    assert "these inputs of the program are empty: past.0.key [0, 4]" in result.remarks
