"""Right ONNX files with rare features, each against itself: all is judged, and a planted wrong value is found."""

from functools import partial

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

from filch.compare import CompareError, compare_programs
from filch.export import ProgramError, load_program
from support.faults.fakes import WrongBackend
from support.models.small import onnx_model
from support.versions import since

model = partial(onnx_model, opset=19, ir_version=9)


def outputs(report):
    return [(row.value, row.status) for row in report.rows if (row.kind, row.stage) == ("output", "compiled")]


PASSED_ON = "(float[3] x) => (float[3] y, float[3] %s) <float[3] w = {%s}> { y = Relu(x) }"


@pytest.mark.parametrize("name", ["x", "w", "y"])
def test_an_output_that_no_node_computes_is_judged(name):
    """It is an input, an initializer, or listed twice: in place and order, like other outputs."""
    file = model(PASSED_ON % (name, "1, 2, 3"))
    report = compare_programs(file, file)
    assert report.outcome == "close"
    assert outputs(report) == [("y", "same"), (name, "same")]


def test_a_wrong_output_that_no_node_computes_is_found():
    """The initializer has another number, or the input is returned in its place."""
    file = model(PASSED_ON % ("w", "1, 2, 3"))
    for wrong in (PASSED_ON % ("w", "1, 2, 4"), PASSED_ON % ("x", "1, 2, 3")):
        report = compare_programs(file, model(wrong))
        assert [status for _, status in outputs(report)] == ["same", "different"]


@pytest.mark.parametrize(("number", "status"), [(-3, "same"), (3, "different")])
def test_an_output_that_is_folded_is_judged_by_what_the_reference_computes(number, status):
    """And the other way round."""
    folded = model(PASSED_ON % ("w", f"-1, -2, {number}"))
    computed = model("(float[3] x) => (float[3] y, float[3] w) <float[3] u = {1, 2, 3}> { y = Relu(x)  w = Neg(u) }")
    for pair in ((folded, computed), (computed, folded)):
        assert outputs(compare_programs(*pair)) == [("y", "same"), ("w", status)]


def test_a_file_of_only_an_initializer_is_judged():
    """There is no node at all."""
    assert compare_programs(*[model("() => (float[2] w) <float[2] w = {1, 2}> {}")] * 2).outcome == "close"


@pytest.mark.parametrize(
    ("kind", "node", "reason"),
    [
        ("seq(int64[N])", "SequenceConstruct(i, j)", "it is a sequence"),
        ("float8e4m3fn[3]", "Cast<to=17>(x)", "it is a tensor of float8e4m3fn"),
    ],
)
def test_an_output_that_is_no_tensor_of_numbers_is_named(kind, node, reason):
    """The others are judged, and a fault in them is found."""
    right, wrong = (
        model(
            f"(float[3] x) => ({kind} y, float[3] z) <int64[1] i = {{0}}, int64[2] j = {{0, 1}}> "
            f"{{ y = {node} z = {op}(x) }}"
        )
        for op in ("Abs", "Neg")
    )
    report = compare_programs(right, right)
    assert report.outcome == "incomplete"
    assert f"the output 'y' is not compared, because {reason}" in report.headline
    assert ("z", "same") in outputs(report)
    assert compare_programs(right, wrong).outcome == "different"


SEQUENCE = "seq(float[N])", "a sequence: its elements are compared as one tensor"
STRINGS = "string[3]", "a tensor of strings: hashes of the strings are compared"
WORDS = "ai.onnx.ml.LabelEncoder<keys_int64s = [0, 1, 2], values_strings = [%s]>(i)"


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "reference"])
@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (SEQUENCE, "SequenceConstruct(x, z)", "SequenceConstruct(z, x)"),
        (SEQUENCE, "SequenceConstruct(x, z)", "SequenceConstruct(x)"),
        (SEQUENCE, "SequenceConstruct(x, part)", "SequenceConstruct(part, x)"),
        (STRINGS, WORDS % '"a", "b", "c"', WORDS % '"a", "b", "d"'),
        (STRINGS, "Cast<to=8>(x)", "Cast<to=8>(z)"),
    ],
)
def test_outputs_that_are_strings_or_sequences_are_judged(kind, right, wrong, backend):
    """By a tensor that a note names: other elements, other lengths, another order are found."""
    files = [
        model(
            f"(float[3] x) => ({kind[0]} y, float[3] z) <int64[3] i = {{0, 1, 2}}, int64[2] two = {{0, 1}}> "
            f"{{ z = Exp(x) part = Gather(z, two) y = {node} }}"
        )
        for node in (right, wrong)
    ]
    report = compare_programs(files[0], files[0], backend=backend)
    assert report.outcome == "close", report
    assert f"the output 'y' is {kind[1]}" in report.notes
    report = compare_programs(*files, backend=backend)
    assert ("y", "same") not in outputs(report) and report.outcome == "different"


def test_strings_that_are_not_utf_8_are_not_judged():
    """ONNX Runtime can't return them to Python."""
    file = model("() => (string[1] y) { y = Identity(w) }")
    file.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.STRING, [1], [b"\xff"]))
    assert compare_programs(file, file).outcome == "incomplete"


def test_a_model_that_onnx_ir_can_not_read_is_refused():
    """An attribute is text that is not UTF-8."""
    file = model('() => (string[1] y) { y = Constant<value_strings = ["a"]>() }')
    file.graph.node[0].attribute[0].strings[0] = b"\xff"
    with pytest.raises(ProgramError, match="the model can't be used"):
        compare_programs(file, file)


def test_a_tensor_in_place_of_a_sequence_is_no_such_output():
    """Whatever its numbers are."""
    sequence, tensor = (
        model(f"(float[1, 3] x) => ({kind} y) <int64[1] axes = {{0}}> {{ y = {node} }}")
        for kind, node in (("seq(float[1, 3])", "SequenceConstruct(x)"), ("float[1, 1, 3]", "Unsqueeze(x, axes)"))
    )
    report = compare_programs(sequence, tensor)
    assert report.outcome == "different"
    assert report.interface == ("the output 'y' is a tensor, that of the reference a sequence",)


def block_product(level=4, factor=1.0):
    """Return y = x @ w, whose weight has 4 bits and blocks of 16 numbers; one of the scales is multiplied."""
    random = np.random.default_rng(1)
    scales = random.uniform(0.01, 0.02, 16).astype(np.float32)
    scales[3] *= factor
    file = model(
        "(float[3, 32] x) => (float[3, 8] y) { y = com.microsoft.MatMulNBits"
        f"<K = 32, N = 8, bits = 4, block_size = 16, accuracy_level = {level}>(x, w, scales) }}"
    )
    weights = {"w": random.integers(0, 255, (8, 2, 8)).astype(np.uint8), "scales": scales}
    file.graph.initializer.extend(onnx.numpy_helper.from_array(item, name) for name, item in weights.items())
    return file


@pytest.mark.parametrize("level", [0, 2, 3, 4])
def test_a_product_that_may_round_its_operand_is_judged_by_that(level):
    """Its `accuracy_level` allows float16, bfloat16 or int8 of either side."""
    file = block_product(level)
    assert compare_programs(file, file).outcome == "close"
    assert compare_programs(file, block_product(level, factor=4.0)).outcome == "different"


@pytest.mark.parametrize("level", [3, 4])
def test_what_a_product_rounds_does_not_explain_a_wrong_scale(level):
    """One of 16 blocks is a thousandth too large, less than eight bits round in the whole run."""
    report = compare_programs(block_product(level), block_product(level, factor=1.001))
    assert [row.op for row in report.introduced] == ["com.microsoft::MatMulNBits"] * 2
    assert report.introduced[0].float64.sound


@pytest.mark.parametrize("other", [0, 4])
def test_each_product_may_round_as_that_of_the_reference_does(other):
    """One of two rounds its operand; what is computed from it is judged on the same numbers."""

    def pair(level, factor=1.0):
        product = "com.microsoft.MatMulNBits<K = 32, N = 32, bits = 4, block_size = 16, accuracy_level ="
        file = model(
            "(float[3, 32] x) => (float[3, 32] y) "
            f"{{ h = {product} 4>(x, w, s) g = Mul(h, k) r = Relu(g) y = {product} {level}>(r, w, s) }}"
        )
        random = np.random.default_rng(1)
        scales, factors = random.uniform(0.01, 0.02, 64), np.full(32, 1.0)
        factors[5] *= factor
        weights = {"w": random.integers(0, 255, (32, 2, 8)).astype(np.uint8), "s": scales, "k": factors}
        for name, item in weights.items():
            item = item if name == "w" else item.astype(np.float32)  # noqa: PLW2901
            file.graph.initializer.append(onnx.numpy_helper.from_array(item, name))
        return file

    assert compare_programs(pair(other), pair(other)).outcome == "close"
    assert compare_programs(pair(4), pair(other)).outcome == "close"  # more accurate
    assert (compare_programs(pair(other), pair(4)).outcome == "close") == (other == 4)
    report = compare_programs(pair(other), pair(other, factor=1.0005))
    assert {row.op for row in report.introduced} == {"Mul"}


def test_a_lower_accuracy_level_than_that_of_the_reference_is_an_error():
    """The program is less accurate, which has to be allowed explicitly."""
    assert compare_programs(block_product(0), block_product(4)).outcome == "different"
    assert compare_programs(block_product(0), block_product(4), lower_precision=True).outcome == "close"


@pytest.mark.parametrize("scale", [0.02, 0.03])
def test_numbers_near_the_middle_of_two_steps_are_quantized_as_float32_divides_them(scale):
    """Among so many numbers, some are nearer to it than float32 can tell; a wrong scale is still found."""
    text = "(float[64, 2048] x) => (float[64, 4] y) <float s = {%s}> { %s }"
    chain = "q, step, zero = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, zero) f = Cast<to=1>(i)"
    nodes = f"{chain} u = Mul(f, step) y = Mul(u, s)", "y = com.microsoft.DynamicQuantizeMatMul(x, w, s)"
    # Of 7 bits: without VNNI instructions, ONNX Runtime adds two products in 16 bits, which saturates with 8.
    weight = np.random.default_rng(0).integers(-64, 64, (2048, 4)).astype(np.int8)
    for body in nodes:
        right, other = (model(text % (number, body)) for number in (0.02, scale))
        for file in (right, other):
            file.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        assert compare_programs(right, other).close == (scale == 0.02)


SELECTION = "(float[4, 9] x) => (float[4, 3] y, int64[4, 3] i) <int64[1] k = {3}> { %s }"
OPEN, SORTED = (f"y, i = TopK<largest = 0, sorted = {number}>(x, k)" for number in (0, 1))


def test_numbers_that_are_selected_in_any_order_are_judged_as_a_set():
    """Each number is there, in another order than float64's, or than that of the program."""
    file = model(SELECTION % OPEN)
    assert compare_programs(file, file).outcome == "close"
    assert compare_programs(file, model(SELECTION % SORTED)).outcome == "close"


@pytest.mark.parametrize(
    ("reference", "program"),
    [
        (OPEN, OPEN.replace("largest = 0", "largest = 1")),
        (OPEN, f"{OPEN.replace('y,', 'z,')} y = Abs(z)"),
        (SORTED, OPEN),
    ],
)
def test_other_numbers_and_an_order_that_the_reference_does_not_leave_open_are_found(reference, program):
    """The program selects others, changes them, or does not sort them."""
    assert compare_programs(model(SELECTION % reference), model(SELECTION % program)).outcome == "different"


def test_indices_that_are_not_those_of_the_selected_numbers_are_found():
    """They are the right ones in the reverse order, while the numbers are not reversed."""
    file = model(SELECTION % OPEN)
    report = compare_programs(file, file, backend=WrongBackend({"i": lambda indices: indices.flip(-1)}))
    assert report.first_divergence.value == "i"


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("size", [7, 14])
def test_the_nearest_of_two_numbers_at_the_same_distance_is_that_of_float32(size, rounding):
    """ONNX Runtime is exactly right, and a wrong mode is found."""
    text = f'(float[1, {size}] x) => (float[1, 9] y) <int64[2] sizes = {{1, 9}}> {{ y = Resize<mode = "nearest", '
    text += 'nearest_mode = "%s">(x, , , sizes) }'
    files = {name: model(text % name) for name in (rounding, "ceil" if rounding == "floor" else "floor")}
    first, other = files.values()
    assert compare_programs(first, first).outcome == "close"
    assert compare_programs(first, other).outcome == "different"


NEAR_TIES = [  # in float32, ONNX Runtime computes them by other operations than float64 shows
    ("half_pixel_symmetric", "round_prefer_floor", 7, "0.6"),
    ("half_pixel_symmetric", "ceil", 13, "0.6"),
    ("half_pixel", "round_prefer_floor", 16, "1.3"),
    pytest.param(
        *("asymmetric", "round_prefer_ceil", 7, "2"),
        marks=since("onnxruntime", "1.27", "a position of 3.5 is computed as slightly less"),
    ),
]


@pytest.mark.parametrize(("coordinates", "rounding", "size", "setting"), NEAR_TIES)
def test_either_of_two_numbers_is_right_that_rounding_decides_between(coordinates, rounding, size, setting):
    """Along two axes; a wrong mode is found, also one that matters at exact ties alone."""

    def resized(rounding, setting):
        kind, one, place = ("float", "1.0", "s") if "." in setting else ("int64", "1", ", s")
        return model(
            f"(float[1, {size}, {size}] x) => (float[1, b, c] y) <{kind}[3] s = {{{one}, {setting}, {setting}}}> "
            f'{{ z = Resize<mode = "nearest", coordinate_transformation_mode = "{coordinates}", '
            f'nearest_mode = "{rounding}">(x, , {place}) y = Exp(z) }}'
        )

    first = resized(rounding, setting)
    assert compare_programs(first, first).outcome == "close"
    wrong = "floor" if rounding in ("ceil", "round_prefer_ceil") else "ceil"
    assert compare_programs(first, resized(wrong, setting)).outcome == "different"


def test_an_exact_tie_has_one_right_number():
    """Every second place of a half is in the middle of two, in float32 as in float64."""
    text = "(float[8] x) => (float[4] y) <float[1] s = {0.5}> "
    text += '{ y = Resize<mode = "nearest", nearest_mode = "%s">(x, , s) }'
    first, other = (model(text % name) for name in ("round_prefer_floor", "round_prefer_ceil"))
    assert compare_programs(first, first).outcome == "close"
    assert compare_programs(first, other).outcome == "different"


def sparse(number=2.0, place=5, shape=(2, 3)):
    """Return a sparse tensor of two numbers."""
    numbers, places = np.array([1, number], np.float32), np.array([0, place])
    parts = onnx.numpy_helper.from_array(numbers, "w"), onnx.numpy_helper.from_array(places, "places")
    return onnx.helper.make_sparse_tensor(*parts, shape)


def with_sparse(tensor, *, is_constant):
    """Return y = x + w with a sparse tensor as w: the initializer or a constant."""
    file = model("(float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }")
    if is_constant:
        file.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    else:
        file.graph.sparse_initializer.append(tensor)
    return file


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_sparse_tensor_is_that_of_its_numbers(is_constant, tmp_path):
    """Each file is written and read; a wrong number and a wrong place are found."""
    paths = []
    for index, tensor in enumerate([sparse(), sparse(number=3.0), sparse(place=4)]):
        paths.append(tmp_path / f"{index}.onnx")
        onnx.save(with_sparse(tensor, is_constant=is_constant), paths[-1])
    outcomes = [compare_programs(paths[0], path).outcome for path in (tmp_path / "0.onnx", *paths[1:])]
    assert outcomes == ["close", "different", "different"]


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (sparse(place=6), r"the indices of the sparse tensor 'w' do not fit its shape \[2, 3\]"),
        (sparse(shape=(2**40,)), "the sparse tensor 'w' would take more than 768 MB"),
    ],
)
def test_a_sparse_tensor_that_is_no_dense_one_is_refused(tensor, problem, tmp_path):
    """Its places are outside of its shape, or the dense one is too large."""
    onnx.save(with_sparse(tensor, is_constant=False), tmp_path / "m.onnx")
    with pytest.raises(ProgramError, match=problem):
        load_program(tmp_path / "m.onnx")


def classifier(weight=0.1, classes="0, 1"):
    """Return scikit-learn's classifier with its default output: a map from classes to probabilities for each row."""
    file = model(
        "(float[3, 2] x) => (int64[3] label, float[3, 2] scores) {"
        f"label, p = ai.onnx.ml.LinearClassifier<coefficients = [{weight}, 0.2, -0.3, 0.4], intercepts = [0.1, 0.0], "
        f"classlabels_ints = [0, 1]>(x) scores = ai.onnx.ml.ZipMap<classlabels_int64s = [{classes}]>(p) }}"
    )
    row = onnx.helper.make_map_type_proto(7, onnx.helper.make_tensor_type_proto(1, None))
    file.graph.output[1].type.CopyFrom(onnx.helper.make_sequence_type_proto(row))
    return file


def test_the_numbers_of_a_map_are_judged():
    """A note says so; a wrong weight is found by them."""
    report = compare_programs(classifier(), classifier())
    assert report.outcome == "close"
    assert ("scores", "same") in outputs(report)
    assert (
        "'scores' is a map from 2 classes (0, 1): the tensor of its numbers, sorted by class, is compared in its place"
        in report.notes
    )
    assert ("scores", "different") in outputs(compare_programs(classifier(), classifier(0.2)))


def test_the_classes_of_a_map_are_judged():
    """The probability of one class is that of another one, or the classes have other names."""
    exchanged, others = (compare_programs(classifier(), classifier(classes=classes)) for classes in ("1, 0", "0, 2"))
    assert ("scores", "different") in outputs(exchanged) and exchanged.outcome == "different"
    assert others.outcome == "different"
    assert others.interface == (
        "the output 'scores' is a map from 2 classes (0, 2), that of the reference a map from 2 classes (0, 1)",
    )


def test_an_optional_value_is_judged_by_its_element():
    """The file that runs does not declare it as a tensor; a fault before it is found."""
    right, wrong = (
        model(f"(float[3] x) => (float[3] y) {{ r = {op}(x) o = Optional(r) y = OptionalGetElement(o) }}")
        for op in ("Abs", "Neg")
    )
    assert compare_programs(right, right).outcome == "close"
    assert compare_programs(right, wrong).outcome == "different"


def labels(factor=1):
    """Return y = x + the numbers of strings."""
    numbers = f'keys_strings = ["a", "b"], values_floats = [1.0, {2.0 * factor}]'
    return model(
        f"(string[3] s, float[3] x) => (float[3] y) {{ n = ai.onnx.ml.LabelEncoder<{numbers}>(s) y = Add(n, x) }}"
    )


GIVEN = [{"s": np.array(words), "x": np.zeros(3, np.float32)} for words in (["a", "b", "a"], [b"a", b"b", b"a"])]


@pytest.mark.parametrize("inputs", [None, *GIVEN])
def test_inputs_that_are_strings_are_constants(inputs):
    """They are drawn from the strings that the nodes know, or given; a wrong number of one is found."""
    report = compare_programs(labels(), labels(), inputs=inputs)
    assert report.outcome == "close"
    assert "the inputs s are strings or sequences, which were made constants of both programs" in report.notes
    assert compare_programs(labels(), labels(3), inputs=inputs).outcome == "different"


@pytest.mark.parametrize(
    ("calls", "problem"),
    [
        (
            [{"s": ["a", "b", "a"]}, {"s": ["b", "b", "a"]}],
            "the input 's' has strings: give them, the same in each call",
        ),
        ([{"s": ["a", "b", "a"], "x": ["a", "b", "a"]}], "the input 'x' has <U1, but the program takes numbers there"),
        ([{"s": ["a", "b", "a"], "x": None}], "the input 'x' has object, but the program takes numbers there"),
    ],
)
def test_strings_that_can_not_be_given_are_refused(calls, problem):
    """They change between calls, or are in place of numbers."""
    zeros = {"x": np.zeros(3, np.float32)}
    inputs = [zeros | {name: np.array(array) for name, array in call.items()} for call in calls]
    with pytest.raises(CompareError, match=problem):
        compare_programs(labels(), labels(), inputs=inputs)


def summed(factor=1.0):
    """Return the sum of the tensors of a sequence, which another output has in reverse order."""
    return model(
        "(seq(float[N]) s, int64[1] i) => (float[M] y, seq(float[N]) t) <int64 zero = {0}, int64 one = {1}> {"
        f"a = SequenceAt(s, zero) b = SequenceAt(s, one) f = Constant<value_float = {factor}>() "
        "g = Mul(b, f) y = Concat<axis = 0>(a, g) t = SequenceConstruct(b, a) }"
    )


def test_inputs_that_are_sequences_are_constants():
    """Given as lists of arrays of several shapes; a fault in what is computed from one is found."""
    inputs = {"s": [np.ones(2, np.float32), np.arange(3, dtype=np.float32)], "i": np.zeros(1, np.int64)}
    report = compare_programs(summed(), summed(), inputs=inputs)
    assert report.outcome == "close", report
    assert "the inputs s are strings or sequences, which were made constants of both programs" in report.notes
    report = compare_programs(summed(), summed(2.0), inputs=inputs)
    assert [(name, status) for name, status in outputs(report) if status != "same"] == [("y", "different")]


def test_an_input_that_is_an_empty_sequence_is_a_constant():
    """Its length is what the program returns."""
    file = model("(seq(float[N]) s) => (int64 y) { y = SequenceLength(s) }")
    assert compare_programs(file, file, inputs={"s": []}).outcome == "close"


def test_a_sequence_can_not_be_drawn():
    """A sentence says what to give."""
    file = model("(seq(float[N]) s) => (int64 y) { y = SequenceLength(s) }")
    with pytest.raises(CompareError, match="the input 's' is a sequence: give a list of its tensors in `inputs`"):
        compare_programs(file, file)


WEIGHTED = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("kind", "given", "problem"),
    [
        *(("seq(float[N])", item, "is a sequence: give a list") for item in (None, np.ones(2), [[1.0, [2.0]]])),
        *(("string[N]", item, "has strings: give them") for item in (None, [1.0], ["\ud800"], [b"\xff"], WEIGHTED)),
        *(
            ("float[N]", item, "the program takes numbers there")
            for item in ([WEIGHTED], WEIGHTED.to("meta"), np.ones(2, np.longdouble), [[1.0], [1.0, 2.0]], ["a"])
        ),
    ],
    ids=lambda item: str(item)[:20],
)
def test_inputs_of_another_kind_are_refused(kind, given, problem):
    """Whatever they are, in one sentence."""
    file = model(f"({kind} s) => ({kind} y) {{ y = Identity(s) }}")
    with pytest.raises(CompareError, match=problem):
        compare_programs(file, file, inputs={"s": given})


@pytest.mark.parametrize("given", [(np.ones(2, ">f4"),), [WEIGHTED], [np.array([np.nan], np.float32)]], ids=str)
def test_a_sequence_may_have_any_tensors_of_its_dtype(given):
    """Of another byte order, with a gradient, with NaN; the same in two calls."""
    file = model("(seq(float[N]) s) => (seq(float[N]) y) { y = Identity(s) }")
    assert compare_programs(file, file, inputs=[{"s": given}, {"s": given}]).outcome == "close"


def test_names_that_are_made_are_not_those_of_the_file():
    """Of the elements of a sequence, and of the order of the classes of a map; nor those of a branch."""
    text = "(seq(float[N]) s) => (float[2] y) <float[2] %s = {1, 2}> { z = SequenceLength(s) y = Neg(%s) }"
    file = model((text % ("w", "w")).replace("w", "s_0_"))
    file.graph.initializer[0].name = file.graph.node[1].input[0] = "s[0]"
    assert compare_programs(file, file, inputs={"s": [np.ones(2, np.float32)]}).outcome == "close"
    files = [classifier(classes="1, 0") for _ in range(2)]
    for file, order in zip(files, ([0, 1, 1], [1, 1, 0]), strict=True):
        file.graph.initializer.append(onnx.numpy_helper.from_array(np.array(order), "order"))
        file.graph.node.append(onnx.helper.make_node("Gather", ["x", "order"], ["rows"]))
        file.graph.output.append(onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, [3, 2]))
    assert compare_programs(files[0], files[0]).outcome == "close"
    assert ("rows", "different") in outputs(compare_programs(*files))
    branches = model(
        "(float[3, 2] x, bool c) => (float[3, 2] y) { y = If(c) <then_branch = a () => (float[3, 2] t) "
        "{ order = Constant<value_float = 1.0>() t = Add(x, order) }, "
        "else_branch = b () => (float[3, 2] e) { e = Neg(x) }> }"
    )
    file = classifier(classes="1, 0")
    file.graph.node.append(branches.graph.node[0])
    file.graph.input.append(branches.graph.input[1])
    file.graph.output.append(branches.graph.output[0])
    assert compare_programs(file, file).outcome == "close"


def test_nan_is_no_end_of_a_shorter_element():
    """Where both could be meant, the sequence is not judged, and no note says that it is."""
    file = model("(seq(float[N]) s) => (seq(float[N]) y) { y = Identity(s) }")
    report = compare_programs(file, file, inputs={"s": [np.array([1, np.nan], np.float32), np.ones(1, np.float32)]})
    assert report.outcome == "incomplete"
    assert not [note for note in report.notes if "compared as one tensor" in note]


def test_repeated_numbers_explain_nothing_in_half_precision():
    """Products of float16 are added up in float32: one in twenty is no rounding, however many are added."""
    files = [model("(float16[4, 4096] x) => (float16[4, 8] y) { y = MatMul(x, w) }") for _ in range(2)]
    for file, number in zip(files, (0.01, 0.0105), strict=True):
        weight = np.full((4096, 8), number, np.float16)
        file.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    inputs = {"x": np.ones((4, 4096), np.float16)}
    assert compare_programs(files[0], files[0], inputs=inputs).outcome == "close"
    assert compare_programs(*files, inputs=inputs).outcome == "different"


def test_inputs_may_be_arrays_of_bfloat16():
    """NumPy has them by ml_dtypes, as onnx's helpers return them."""
    file = model("(bfloat16[3] x) => (float[3] y) { z = Cast<to = 1>(x) y = Neg(z) }")
    assert compare_programs(file, file, inputs={"x": np.ones(3, ml_dtypes.bfloat16)}).outcome == "close"


def test_the_lowest_number_masks_as_well_as_minus_infinity():
    """ONNX Runtime's attention returns it in the scores, for which the standard says -inf."""
    file = model(
        "(float[1, 2, 4, 8] q, float[1, 2, 4, 8] k, float[1, 2, 4, 8] v) => (float[1, 2, 4, 8] y, float[1, 2, 4, 4] s) "
        "{ y, , , s = Attention<is_causal = 1, qk_matmul_output_mode = 2>(q, k, v) }",
        opset=23,
    )
    report = compare_programs(file, file, every_node=True)
    assert report.outcome == "close", report


def test_a_branch_that_is_not_taken_need_not_fit_the_shapes():
    """A runtime would refuse it if the file declared the shapes that values have in this run."""
    file = model(
        "(float[N] x) => (float[M] y) <int64[1] axis = {0}> { n = Size(x) one = Constant<value_int = 1>() "
        "is_one = Equal(n, one) z = Neg(x) "
        "y = If(is_one) <then_branch = a () => (float[P] t) { u = Unsqueeze(z, axis) w = Squeeze(z, axis) "
        "v = Unsqueeze(w, axis) t = Abs(v) }, else_branch = b () => (float[Q] e) { e = Exp(z) }> }"
    )
    assert compare_programs(file, file, inputs={"x": np.ones(3, np.float32)}).outcome == "close"


def test_weights_that_an_old_file_lists_as_inputs_are_constants():
    """A runtime folds the shapes of the biases, but keeps the inputs in the graph that it has optimized."""
    file = model(
        "(float[1, 2, 3, 3] x, int64[1] s, int64[1] t) => (float[1, 2, 3, 3] y) "
        "<int64[1] s = {2}, int64[1] t = {2}, float[2, 2, 1, 1] w = {1, 2, 3, 4}> { "
        "b = ConstantOfShape<value = float[1] {0.5}>(s) c = ConstantOfShape<value = float[1] {0.5}>(t) "
        "z = Conv(x, w, b) y = Conv(z, w, c) }",
        opset=9,
    )
    file.ir_version = 3
    file.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2, 2, 1, 1]))
    assert compare_programs(file, file).outcome == "close"


@pytest.mark.parametrize(
    "node",
    ["GlobalAveragePool(x)", "AveragePool<kernel_shape = [56, 56]>(x)", "ReduceMean<axes = [2, 3]>(x)", "Conv(x, w)"],
)
@pytest.mark.parametrize("number", [0.1, 0.7])
def test_rounding_errors_of_sums_of_one_number_add_up(node, number):
    """A loop is up to a thousand units off, where random numbers leave it at ten; 5,000 units are no rounding."""
    file = model(f"(float[1, 2, 56, 56] x) => (float[N, C, H, W] y) {{ y = {node} }}", opset=17)
    weight = np.full((1, 2, 56, 56), 0.3, np.float32)
    file.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    inputs = {"x": np.full((1, 2, 56, 56), number, np.float32)}
    assert compare_programs(file, file, inputs=inputs, every_node=True).outcome == "close"
    wrong = WrongBackend({"y": lambda y: y * 1.0003})
    assert compare_programs(file, file, inputs=inputs, backend=wrong).outcome == "different"


@pytest.mark.parametrize("ties", [0, 1, 100])
@pytest.mark.parametrize(
    ("right", "wrong"), [("Round(x)", "Floor(x)"), ("Floor(x)", "Ceil(x)"), ("Round(x)", "Neg(x)")]
)
def test_a_number_that_noise_rounds_to_another_one_explains_no_other_error(right, wrong, ties):
    """A step of one element, or of each tenth one, is no measure of the errors of the others."""
    x = np.random.default_rng(0).normal(0, 5, 1000).astype(np.float32)
    x[:ties] = 2.5 if right == "Round(x)" else 3.0
    files = [model(f"(float[1000] x) => (float[1000] y) {{ y = {node} }}") for node in (right, wrong)]
    assert compare_programs(files[0], files[0], inputs={"x": x}).outcome == "close"
    assert compare_programs(*files, inputs={"x": x}).outcome == "different"


TREE = (
    "ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], "
    'nodes_featureids = [0, 0, 0], nodes_values = [1.5, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], '
    "nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0], target_nodeids = [1, 2], "
    "target_ids = [0, 0], target_weights = [%s, %s]>"
)


def test_a_tree_whose_threshold_is_a_number_of_the_input_is_judged():
    """Noise leads one row to another leaf; all rows of a file with other leaves are wrong."""
    text = f"(float[4, 1] x) => (float[4, 1] y) {{ y = {TREE}(x) }}"
    right, wrong = model(text % (1.0, 2.0)), model(text % (1.1, 2.1))
    inputs = {"x": np.array([[0.0], [1.0], [1.5], [3.0]], np.float32)}
    assert compare_programs(right, right, inputs=inputs).outcome == "close"
    assert compare_programs(right, wrong, inputs=inputs).outcome == "different"


@pytest.mark.parametrize(("last", "outcome"), [("", "close"), ("y = Neg(z) ", "different")])
def test_a_leaf_that_rounding_decides_is_a_decision_which_others_follow(last, outcome):
    """Half of the rows are at the threshold, and B rounds what the tree compares otherwise."""
    head = "(float[8, 1] x) => (float[8, 1] y) <float[1] c = {3.0}, float[1] e = {0.99999994}, float[1] k = {2.5}> "
    tree = TREE % (1.0, 2.0)
    right = model(f"{head}{{ s = Div(x, c) t = {tree}(s) y = Mul(t, k) }}")
    result = "z" if last else "y"
    moved = model(f"{head}{{ q = Div(x, c) s = Mul(q, e) t = {tree}(s) {result} = Mul(t, k) {last}}}")
    numbers = np.array([0.0, 1.0, 7.0, 9.0, *[np.nextafter(np.float32(4.5), np.float32(9))] * 4], np.float32)
    report = compare_programs(right, moved, inputs={"x": numbers[:, None]})
    assert report.outcome == outcome
    (row,) = {row.value: row for row in report.rows if row.decides}.values()
    assert (row.op.rpartition("::")[2], row.float64.flips.count) == ("TreeEnsembleRegressor", 4)
