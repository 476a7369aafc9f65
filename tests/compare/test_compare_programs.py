"""Two ONNX programs: sound pairs are silent, a planted fault is named, and interfaces, inputs and precisions count."""

import copy
import itertools
from functools import cache
from random import Random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from torch import nn

from faults.nodes.kinds import KINDS, NAN, NOISE, QDQ, Faults, planted
from filch.compare import CompareError, compare_programs
from filch.compare.models._drawn_inputs import draw_inputs
from filch.export import as_program, export, load_program, optimize
from support.models.plain_onnx import VARIANTS, new_names, plain, renamed, saved_by_onnxruntime
from support.thorough import kept

MODELS = ("llama", "gpt2", "bert", "resnet")
PAIRS = [*itertools.product(MODELS, VARIANTS)]
KEPT = [("llama", "saved by ONNX Runtime"), ("bert", "renamed"), ("resnet", "other opset")]
KEPT += [("gpt2", variant) for variant in VARIANTS]


def outputs(report):
    return [row for row in report.rows if row.kind == "output"]


def notes(report, text):
    return [note for note in report.notes if text in note]


@pytest.mark.parametrize(("name", "variant"), kept(PAIRS, *KEPT))
def test_a_sound_pair_is_silent(name, variant):
    """What torch, ONNX Runtime and onnx make of a model is the model: no value differs, and outputs are judged."""
    report = compare_programs(plain(name), VARIANTS[variant](name))
    assert report.close, str(report)
    assert not [row for row in report.rows if row.float64 is not None and row.float64.verdict == "suspicious"]
    judged = [row.judged for row in report.rows if row.kind in ("node", "fused")]
    assert sum(judged) > 0.4 * len(judged)
    assert all(row.float64 is not None for row in outputs(report))


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_a_file_of_the_unoptimized_model_can_be_the_reference(name):
    """The same holds with the programs exchanged."""
    assert compare_programs(VARIANTS["unoptimized"](name), plain(name)).close


@cache
def faults(name):
    graph = as_program(plain(name)).graph
    first, later = (
        {key: tensor.numpy() for key, tensor in draw_inputs(graph, seed=seed).tensors.items()} for seed in (0, 1)
    )
    return Faults(plain(name), first, later)


@cache
def fault(name, kind):
    for seed in range(6):
        found = faults(name).plant(kind, Random(f"{name} {kind} {seed}"))  # noqa: S311  no secret
        if found is None or not found.since:  # a fault may show in the second call alone
            return found
    return None


def planted_kinds(name, kinds):
    """Return the faults of these kinds for which a model has a place."""
    return [found for kind in kinds if (found := fault(name, kind)) is not None]


def check(report, culprits, wrong):
    """Check that the first divergence is the wrong node, or the first one after it with a reference, which names it."""
    first = report.first_divergence
    assert not report.close and culprits & {first.node, *first.unjudged}, f"{wrong.text}\n{report}"


@pytest.mark.parametrize("name", kept(MODELS, "gpt2", "resnet"))
def test_a_planted_fault_is_named(name):
    """Faults of all kinds for which the model has a place, at least five in each model."""
    found = planted_kinds(name, [kind for kind in KINDS if kind != QDQ])
    assert len(found) >= 5
    for wrong in found:
        report = compare_programs(plain(name), planted(plain(name), [wrong]), stages=("exported",))
        check(report, wrong.culprits, wrong)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_a_planted_fault_is_named_without_names(name):
    """The values after the fault are found by what reads them, although no name and no number is the same."""
    for wrong in planted_kinds(name, ["lower precision", "swapped operands", "dropped bias", NOISE, NAN]):
        model = planted(plain(name), [wrong])
        culprits = {new_names(model).get(node) for node in wrong.culprits}
        check(compare_programs(plain(name), renamed(model), stages=("exported",)), culprits, wrong)


def test_a_fault_in_a_fused_node_is_named():
    """The reference has the nodes that ONNX Runtime fused in the file that is judged."""
    wrong = fault("llama", "approximated activation")
    report = compare_programs(plain("llama"), saved_by_onnxruntime(planted(plain("llama"), [wrong])))
    assert report.first_divergence.value == "silu"


def norm(*, epsilon=1e-5, name="y"):
    """Return a program of two nodes: y = LayerNormalization(Relu(x), w)."""
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="relu"),
        helper.make_node("LayerNormalization", ["h", "w"], [name], name="norm", epsilon=epsilon),
    ]
    x, y = (helper.make_tensor_value_info(item, TensorProto.FLOAT, ["batch", 8]) for item in ("x", name))
    weight = numpy_helper.from_array(np.linspace(1, 2, 8, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "main", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_an_error_within_the_tolerance_is_found_by_float64():
    """A slightly larger epsilon changes the output by less than the tolerance, but by more than rounding."""
    report = compare_programs(norm(), norm(epsilon=1.1e-5), shapes={"x": (4, 8)})
    assert report.first_divergence.node == "norm"
    assert all(row.difference.error < 1e-5 for row in report.rows)
    assert "(reference: " in str(report.explanation)


def test_a_report_says_how_to_repeat_it():
    """The note about drawn inputs has the seed, and another seed draws other numbers."""
    reports = [compare_programs(norm(), norm(epsilon=1e-3), seed=seed) for seed in (3, 3, 4)]
    assert notes(reports[0], "the inputs were drawn with seed 3: x (f32[1, 8], normally distributed)")
    errors = [report.first_divergence.error for report in reports]
    assert errors[0] == errors[1] != errors[2]


def test_rows_say_where_the_reference_comes_from():
    """The evidence is the program that is the reference."""
    assert {row.evidence for row in compare_programs(norm(), norm()).rows} == {"program"}


def test_each_call_of_the_inputs_is_compared():
    """A list of inputs is a list of calls, which may have other sizes."""
    calls = [{"x": np.ones((size, 8), np.float32)} for size in (1, 3)]
    report = compare_programs(norm(), norm(), inputs=calls)
    assert report.calls == (2, 2) and {row.shape for row in outputs(report)} == {(1, 8), (3, 8)}


def test_inputs_can_be_a_file(tmp_path):
    """Inputs are read from the file, and nothing is drawn; unnamed arrays are taken in order."""
    for arrays in ({"x": np.ones((2, 8), np.float32)}, {"arr_0": np.ones((2, 8), np.float32)}):
        np.savez(tmp_path / "inputs.npz", **arrays)
        report = compare_programs(norm(), norm(), inputs=tmp_path / "inputs.npz")
        assert report.close and not notes(report, "drawn")


def test_an_output_of_another_name_is_matched_by_position():
    """A note says so, and the output is judged."""
    report = compare_programs(norm(), norm(name="z", epsilon=1e-3))
    assert notes(report, "the output 'y' of the reference is 'z' in the program")
    assert [row.diverged for row in outputs(report)] == [True, True]


def test_a_missing_and_an_added_output_are_interface_problems():
    """Both make a report that is not close, although all values are right."""
    more = norm()
    more.graph.output.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["batch", 8]))
    missing, added = compare_programs(more, norm()), compare_programs(norm(), more)
    assert not missing.close and "is missing" in missing.interface[0]
    assert not added.close and "'h' is not one of the model's" in added.interface[0]


def test_exchanged_outputs_are_an_interface_problem():
    """The same outputs in another order are reported: files are often run by position."""
    first, second = norm(), norm()
    for model in (first, second):
        model.graph.output.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["batch", 8]))
    second.graph.output.reverse()
    assert "in another order" in compare_programs(first, second).interface[0]


def test_a_value_that_the_reference_lacks_is_not_judged():
    """Its row says so; a value that only moves is no fault."""
    model = norm()
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "twice"
    del model.graph.node[0]
    double = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["r", "r"], ["twice2"])]
    half = helper.make_node("Div", ["twice2", "two"], ["twice"])
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    nodes = [*double, half, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    report = compare_programs(norm(), model, stages=("exported",))
    assert report.close
    (row,) = [row for row in report.rows if row.value == "twice2"]
    assert (row.status, row.reason) == ("not mapped", "no reference for this value")


def test_float16_needs_lower_precision(tmp_path):
    """A float16 model is right with `lower_precision`, and differs without."""
    half = convert_float_to_float16(copy.deepcopy(plain("resnet")), keep_io_types=True)
    onnx.save(half, tmp_path / "half.onnx")
    assert compare_programs(plain("resnet"), tmp_path / "half.onnx", lower_precision=True).close
    assert not compare_programs(norm(), convert_float_to_float16(norm(), keep_io_types=True)).close


def test_a_program_with_float16_inputs_is_given_rounded_ones():
    """Inputs of the reference's dtype are refused without `lower_precision`."""
    half = convert_float_to_float16(norm())
    assert compare_programs(norm(), half, lower_precision=True).close
    with pytest.raises(CompareError, match="the program takes x: float16"):
        compare_programs(norm(), half)


def test_programs_of_filch_are_compared_like_any_other(tmp_path):
    """Metadata and the exported program of the file to judge are not its own reference."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    program = export(model, (torch.ones(1, 4),))
    optimize(program).save(tmp_path / "b.onnx")
    loaded = load_program(tmp_path / "b.onnx")
    assert compare_programs(program, loaded).close
    loaded.model.graph.initializers["0.weight"].const_value = ir.tensor(torch.zeros(8, 4), name="0.weight")
    report = compare_programs(program, loaded)
    assert report.first_divergence.value == "linear"


def test_neither_program_is_changed():
    """Both models are as they were: their weights keep their names, for example."""
    first, second = plain("resnet"), renamed(plain("resnet"))
    before = first.SerializeToString(), second.SerializeToString()
    compare_programs(first, second, stages=("exported",))
    assert (first.SerializeToString(), second.SerializeToString()) == before


def test_a_reference_that_cannot_run_is_an_error():
    """The message says that it is the reference."""
    broken = norm()
    broken.graph.node[1].input[0] = "nothing"
    with pytest.raises(CompareError, match="the reference can't be run"):
        compare_programs(broken, norm())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": np.ones((2, 7), np.float32)}, r"takes x: float32\[batch, 8\], but the inputs have"),
        ({"x": np.ones((2, 8))}, "takes x: float32"),
        ({}, "takes an input 'x', but the inputs have nothing"),
        ([], "there are no inputs"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, message):
    """The message says what the program takes and what was given."""
    with pytest.raises(CompareError, match=message):
        compare_programs(norm(), norm(), inputs=inputs)


def test_other_inputs_than_the_reference_are_refused():
    """A program with a further input can't be run on the reference's inputs."""
    model = copy.deepcopy(norm())
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1]))
    with pytest.raises(CompareError, match="the program takes x, z, which do not correspond"):
        compare_programs(norm(), model)


def test_shapes_are_of_drawn_inputs():
    """Given inputs have their own."""
    with pytest.raises(CompareError, match="give either inputs or shapes"):
        compare_programs(norm(), norm(), inputs={"x": np.ones((1, 8), np.float32)}, shapes={"x": (1, 8)})


def test_parts_of_a_sequence_are_judged_by_float64():
    """Exporters translate `split` to a sequence; float64 computes its parts as slices."""
    nodes = [
        helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "second"], ["part"]),
        helper.make_node("Exp", ["part"], ["y"], name="exp"),
    ]
    sizes = [numpy_helper.from_array(np.int64(number), name) for name, number in (("size", 4), ("second", 1))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
    graph = helper.make_graph(nodes, "main", [x], [y], sizes)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    wrong = copy.deepcopy(model)
    wrong.graph.node[2].op_type = "Softplus"
    report = compare_programs(model, wrong, stages=("exported",))
    assert report.first_divergence.node == "exp"
    assert report.first_divergence.isolated.verdict == "wrong"
