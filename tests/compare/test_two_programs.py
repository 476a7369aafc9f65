"""On two ONNX programs, `align` and `compare_programs` have the same outcome and name the same first wrong node."""

import copy

import numpy as np
import pytest
from onnx import numpy_helper, parser

from filch.compare import align, compare_programs

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


def renamed(model):
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
    "renamed": renamed(program()),
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


@pytest.mark.parametrize(("other", "value"), WRONG.values(), ids=WRONG)
def test_both_name_it_without_names(other, value):
    check_first_wrong(renamed(other), f"other_{value}")


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
