"""Right ONNX files with rare features, each against itself: all is judged, and a planted wrong value is found."""

import onnx
import pytest

from filch.compare import compare_programs


def model(text, opset=19):
    """Return a model from the text of its graph."""
    imports = f'"": {opset}, "ai.onnx.ml": 3, "com.microsoft": 1'
    return onnx.parser.parse_model(f"<ir_version: 9, opset_import: [{imports}]> g {text}")


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
        ("seq(float[3])", "SequenceConstruct(x)", "it is a sequence"),
        ("float8e4m3fn[3]", "Cast<to=17>(x)", "it is a tensor of float8e4m3fn"),
        ("string[3]", "Cast<to=8>(x)", "it is a tensor of strings"),
    ],
)
def test_an_output_that_is_no_tensor_of_numbers_is_named(kind, node, reason):
    """The others are judged, and a fault in them is found."""
    right, wrong = (
        model(f"(float[3] x) => ({kind} y, float[3] z) {{ y = {node} z = {op}(x) }}") for op in ("Abs", "Neg")
    )
    report = compare_programs(right, right)
    assert report.outcome == "incomplete"
    assert f"the output 'y' is not compared, because {reason}" in report.headline
    assert ("z", "same") in outputs(report)
    assert compare_programs(right, wrong).outcome == "different"
