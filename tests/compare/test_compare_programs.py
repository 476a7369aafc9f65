"""Two programs compared, and compared as `align` does."""

import copy
import itertools
from functools import cache
from random import Random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime.transformers.float16 import convert_float_to_float16
from torch import nn

from faults.nodes.kinds import KINDS, NAN, NOISE, QDQ, Faults, planted
from filch.compare import CompareError, align, compare_programs
from filch.compare.models._drawn_inputs import draw_inputs
from filch.export import as_program, export, load_program, optimize
from support.models.plain_onnx import VARIANTS, new_names, plain, renamed, saved_by_onnxruntime
from support.models.small import onnx_model
from support.thorough import slow
from support.versions import since

MODELS = ("llama", "gpt2", "bert", "resnet")
PAIRS = [*itertools.product(MODELS, VARIANTS)]


def outputs(report):
    return [row for row in report.rows if row.kind == "output"]


def notes(report, text):
    return [note for note in report.notes if text in note]


@slow
@pytest.mark.parametrize(("name", "variant"), PAIRS)
def test_a_sound_pair_is_silent(name, variant):
    """What torch, ONNX Runtime and onnx make of a model is the model: no value differs, and outputs are judged."""
    report = compare_programs(plain(name), VARIANTS[variant](name))
    assert report.close, str(report)
    assert not [row for row in report.rows if row.float64 is not None and row.float64.verdict == "suspicious"]
    judged = [row.judged for row in report.rows if row.kind in ("node", "fused")]
    assert sum(judged) > 0.4 * len(judged)
    assert all(row.float64 is not None for row in outputs(report))


@slow
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


@slow
@pytest.mark.parametrize("name", MODELS)
def test_a_planted_fault_is_named(name):
    """Faults of all kinds for which the model has a place, at least five in each model."""
    found = planted_kinds(name, [kind for kind in KINDS if kind != QDQ])
    assert len(found) >= 5
    for wrong in found:
        report = compare_programs(plain(name), planted(plain(name), [wrong]), stages=("exported",))
        check(report, wrong.culprits, wrong)


@slow
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_a_planted_fault_is_named_without_names(name):
    """The values after the fault are found by what reads them, although no name and no number is the same."""
    for wrong in planted_kinds(name, ["lower precision", "swapped operands", "dropped bias", NOISE, NAN]):
        model = planted(plain(name), [wrong])
        culprits = {new_names(model).get(node) for node in wrong.culprits}
        check(compare_programs(plain(name), renamed(model), stages=("exported",)), culprits, wrong)


@slow
def test_a_fault_in_a_fused_node_is_named():
    """The reference has the nodes that ONNX Runtime fused in the file that is judged."""
    wrong = fault("llama", "approximated activation")
    report = compare_programs(plain("llama"), saved_by_onnxruntime(planted(plain("llama"), [wrong])))
    assert report.first_divergence.value == "silu"


def norm(*, epsilon=1e-5, name="y"):
    """Return a program of two nodes: y = LayerNormalization(Relu(x), w)."""
    made = onnx_model(
        f"(float[batch, 8] x) => (float[batch, 8] {name}) "
        f"{{ [relu] h = Relu(x) [norm] {name} = LayerNormalization<epsilon = {epsilon:.8f}>(h, w) }}"
    )
    made.graph.initializer.append(numpy_helper.from_array(np.linspace(1, 2, 8, dtype=np.float32), "w"))
    return made


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


@slow
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


@slow
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
    text = "(float[2, 8] x) => (float[2, 4] y) <int64 size = {4}, int64 second = {1}> { "
    text += "parts = SplitToSequence<axis = 1>(x, size) part = SequenceAt(parts, second) [exp] y = %s(part) }"
    report = compare_programs(onnx_model(text % "Exp"), onnx_model(text % "Softplus"), stages=("exported",))
    assert report.first_divergence.node == "exp"
    assert report.first_divergence.isolated.verdict == "wrong"


NUMBERS = np.random.default_rng(0)
SIZES = {"w1": (6, 8), "b1": (8,), "gain": (8,), "shift": (8,), "w2": (8, 5), "b2": (5,)}
WEIGHTS = {name: NUMBERS.standard_normal(size, dtype=np.float32) for name, size in SIZES.items()}
FIRST = ("h = MatMul(x, w1)", "g = Add(h, b1)")
TANH, SOFTMAX, DIFFERENCE = "a = Tanh(g)", "s = Softmax<axis=-1>(g)", "d = Sub(a, s)"
NORM = "n = LayerNormalization<axis=-1, epsilon=1e-5>(d, gain, shift)"
LAST = ("m = MatMul(n, w2)", "y = Add(m, b2)")
PRODUCT = "z = Mul(a, s)"
OUTPUTS = ("float[4, 5] y", "float[4, 8] z")
NORM_IN_STEPS = (
    "mean = ReduceMean<axes=[-1]>(d)",
    "centered = Sub(d, mean)",
    "squares = Mul(centered, centered)",
    "variance = ReduceMean<axes=[-1]>(squares)",
    "epsilon = Constant<value = float {1e-5}>()",
    "moved = Add(variance, epsilon)",
    "deviation = Sqrt(moved)",
    "unit = Div(centered, deviation)",
    "scaled = Mul(unit, gain)",
    "n = Add(scaled, shift)",
)
NODES = (*FIRST, TANH, SOFTMAX, DIFFERENCE, NORM, *LAST, PRODUCT)


def program(*nodes, outputs=OUTPUTS, opset=18, **weights):
    """Return a program of these nodes, with other numbers in some weights."""
    header = f'<ir_version: 9, opset_import: ["": {opset}]> main (float[4, 6] x) => ({", ".join(outputs)})'
    model = parser.parse_model(f"{header} {{ {' '.join(nodes or NODES)} }}")
    weights = {**WEIGHTS, **weights}
    model.graph.initializer.extend(numpy_helper.from_array(item, name) for name, item in weights.items())
    return model


def changed(**changes):
    """Return the nodes with others in place of some, by what these compute."""
    lists = [changes.get(node.partition(" =")[0], node) for node in NODES]
    return [node for item in lists for node in ([item] if isinstance(item, str) else item)]


def without_names(model):
    """Return a program with other names of all values but the input."""
    other = copy.deepcopy(model)
    for item in (*other.graph.initializer, *other.graph.output):
        item.name = f"other_{item.name}"
    for node in other.graph.node:
        node.input[:] = [name if name == "x" else f"other_{name}" for name in node.input]
        node.output[:] = [f"other_{name}" for name in node.output]
    return other


def one_changed(name, number):
    weight = WEIGHTS[name].copy()
    weight[2] = number
    return weight


GEMM = changed(h=(), g="g = Gemm(x, w1, b1)", m=(), y="y = Gemm(n, w2, b2)")
SAME = {
    "equal": program(),
    "reordered": program(*FIRST, SOFTMAX, TANH, PRODUCT, DIFFERENCE, NORM, *LAST),
    "without_names": without_names(program()),
    "fused": program(*GEMM),
    "of another opset": program(*changed(n=NORM_IN_STEPS), opset=13),
}
WRONG = {  # with the value that is wrong first
    "a weight": (program(w2=one_changed("w2", 1.5)), "m"),
    "a weight of a fused node": (program(*GEMM, w2=one_changed("w2", 1.5)), "y"),
    "a bias": (program(b1=one_changed("b1", 1.5)), "g"),
    "a weight that is NaN": (program(b1=one_changed("b1", np.nan)), "g"),
    "an attribute": (program(*changed(s="s = Softmax<axis=0>(g)")), "s"),
    "an epsilon": (program(*changed(n=NORM.replace("1e-5", "1e-2"))), "n"),
    "exchanged operands": (program(*changed(d="d = Sub(s, a)")), "d"),
    "another operand": (program(*changed(d="d = Sub(g, s)")), "d"),
    "a step that is left out": (program(*changed(a="a = Identity(g)")), "a"),
    "a bias that is left out": (program(*changed(g="g = Identity(h)")), "g"),
    "an operator that returns NaN": (program(*changed(a="a = Log(g)")), "a"),
    "a lower precision": (
        program(*changed(z=("p = Mul(a, s)", "z = Cast<to=10>(p)")), outputs=(OUTPUTS[0], "float16[4, 8] z")),
        "z",
    ),
    "another output": (program(outputs=("float[4, 5] y", "float[4, 8] d")), "d"),
}
INTERFACES = {
    "one is missing": program(outputs=OUTPUTS[:1]),
    "one is added": program(outputs=(*OUTPUTS, "float[4, 8] d")),
    "they are exchanged": program(outputs=OUTPUTS[::-1]),
}

# Programs whose numbers float64 can't recognize, or that it can't run, each with a change and the value that is wrong.
OTHERS = {
    "integers": (("h = MatMul(x, w1)", "i = Cast<to=7>(h)", "f = Cast<to=1>(i)", "y = MatMul(f, w2)"), ("w1", 40), "h"),
    "a mask": (
        ("h = MatMul(x, w1)", "c = Greater(h, b1)", "m = Where(c, h, shift)", "y = MatMul(m, w2)"),
        ("Greater", "Less"),
        "c",
    ),
    "nothing but zeros": (
        ("h = MatMul(x, w1)", "s = Sub(h, h)", "t = Tanh(s)", "y = MatMul(t, w2)"),
        ("Sub", "Add"),
        "s",
    ),
    "random numbers": (
        ("h = MatMul(x, w1)", "u = RandomUniformLike<seed=1.0>(h)", "a = Add(h, u)", "y = MatMul(a, w2)"),
        ("Add", "Sub"),
        "a",
    ),
    "a choice that hides an error": (
        ("h = MatMul(x, w1)", "i = ArgMax<axis=1, keepdims=0>(h)", "y = Gather<axis=0>(w2, i)"),
        ("w1", 1e-3),
        "h",
    ),
    "weights that are nearly the same": ((*FIRST, "y = MatMul(g, w2)"), ("w2", 2e-6), "y"),
}


# Inputs or values that are no tensors of numbers, or of types that torch does not compute with.
OF_OTHER_TYPES = {
    "strings": "(string[2] x) => (string[2] y) { y = StringNormalizer(x) }",
    "a sequence": "(float[4] x) => (float[2] y) { s = SplitToSequence(x, w)  i = Constant<value = int64 {1}>()  "
    "y = SequenceAt(s, i) }",
    "a branch": "(bool c, float[2] x) => (float[2] y) { "
    "y = If (c) <then_branch = one () => (float[2] p) { p = Neg(x) }, "
    "else_branch = two () => (float[2] q) { q = Exp(x) }> }",
    "uint16": "(uint16[3] x) => (uint16[3] y) { y = Add(x, x) }",
    "uint64": "(uint64[3] x) => (bool[3] y) { y = Less(x, x) }",
}


NEEDS = {"strings": since("onnxruntime", "1.27", "strings need an installed locale")}


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=name, marks=NEEDS.get(name, ())) for name, text in OF_OTHER_TYPES.items()]
)
def test_both_run_programs_of_other_types(text):
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> main {text}')
    model.graph.initializer.append(numpy_helper.from_array(np.int64(2), "w"))
    assert align(model, model).outcome == compare_programs(model, model).outcome == "close"


@pytest.mark.parametrize(("nodes", "change", "value"), OTHERS.values(), ids=OTHERS)
def test_both_have_one_outcome_where_numbers_say_little(nodes, change, value):
    """Also of the program itself."""
    outputs = ("float[4, 5] y",) if "w2" in nodes[-1] else ("float[4, 8] y",)
    old, new = change
    weights = {old: WEIGHTS[old] * np.float32(1 + new)} if old in WEIGHTS else {}
    other = nodes if weights else [node.replace(f" {old}(", f" {new}(") for node in nodes]
    right, wrong = program(*nodes, outputs=outputs), program(*other, outputs=outputs, **weights)
    assert align(right, right).outcome == compare_programs(right, right).outcome
    alignment, report = align(right, wrong), compare_programs(right, wrong)
    assert alignment.outcome == report.outcome == "different"
    assert alignment.departures[0].value == report.first_divergence.value == value


@pytest.mark.parametrize("other", SAME.values(), ids=SAME)
def test_both_find_equal_programs_close(other):
    assert align(program(), other).outcome == "close"
    assert compare_programs(program(), other).outcome == "close"


def check_first_wrong(other, value):
    alignment, report = align(program(), other), compare_programs(program(), other)
    assert alignment.outcome == report.outcome == "different"
    assert report.first_divergence is not None
    assert alignment.departures[0].value == report.first_divergence.value == value


@pytest.mark.parametrize(("other", "value"), WRONG.values(), ids=WRONG)
def test_both_name_the_node_that_is_wrong_first(other, value):
    check_first_wrong(other, value)


@slow
@pytest.mark.parametrize(("other", "value"), WRONG.values(), ids=WRONG)
def test_both_name_it_without_names(other, value):
    check_first_wrong(without_names(other), f"other_{value}")


def test_both_refuse_an_output_of_another_shape():
    nodes = changed(z=("p = Mul(a, s)", "k = Constant<value = int64[1] {-1}>()", "z = Reshape(p, k)"))
    check_first_wrong(program(*nodes, outputs=(OUTPUTS[0], "float[32] z")), "z")


@pytest.mark.parametrize("other", INTERFACES.values(), ids=INTERFACES)
def test_both_refuse_other_outputs(other):
    """No node is wrong."""
    alignment, report = align(program(), other), compare_programs(program(), other)
    assert alignment.outcome == report.outcome == "different"
    assert not alignment.departures
    assert report.first_divergence is None


def test_a_wrong_step_that_the_first_program_lacks_is_named_by_both():
    """`compare_programs` judges the value behind such steps, and says which they are."""
    nodes = changed(n=("root = Sqrt(d)", "square = Mul(root, root)", NORM.replace("(d,", "(square,")))
    other = program(*nodes)
    alignment, report = align(program(), other), compare_programs(program(), other)
    assert alignment.outcome == report.outcome == "different"
    assert report.first_divergence is not None
    steps = [node for node in report.graphs["exported"].nodes if node.name in report.first_divergence.origins]
    assert alignment.departures[0].value == "root"
    assert [node.outputs[0] for node in steps] == ["root", "square", "n"]
