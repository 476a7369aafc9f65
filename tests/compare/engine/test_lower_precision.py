"""Comparing programs of lower precision with what the model did: types, limits, overflows and clipped values."""

import copy
import json

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper
from onnx_ir import serde
from torch import nn

from filch.compare import Tolerance, compare, compare_tensors, default_tolerance
from filch.compare.cli._app import app
from filch.compare.metrics._limits import Limits
from filch.export import BackendError, Program, export, lower, optimize
from filch.export.lowering._integers import products_saturate
from filch.steal import steal_forward
from support.models.small import capture_of, module_of, onnx_model


def layers():
    """A normalization between two linear layers, with two results."""

    def forward(self, x):
        hidden = torch.relu(self.norm(self.first(x)) * 3)
        return self.last(hidden), torch.softmax(hidden, -1)

    return module_of(forward, first=nn.Linear(32, 64), norm=nn.LayerNorm(64), last=nn.Linear(64, 32))


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return layers().eval()


@pytest.fixture(scope="module")
def capture(model, inputs):
    return capture_of(model, inputs, submodules=True)


@pytest.fixture(scope="module")
def program(model, inputs):
    return optimize(export(model, (inputs,)))


def row_of(report, value, kind="node"):
    return next(row for row in report.rows if row.value == value and row.kind == kind)


def outputs(report):
    return [row for row in report.rows if row.kind == "output"]


def test_another_type_is_an_error_unless_a_lower_precision_is_allowed():
    """An accidental change of dtype is a difference, however close the numbers are."""
    expected = torch.ones(3)
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        actual = expected.to(dtype)
        assert "the dtype differs" in str(compare_tensors(actual, expected).problem)
        allowed = compare_tensors(actual, expected, lower_precision=True)
        assert (allowed.close, allowed.tolerance) == (True, default_tolerance(dtype))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (torch.float16, torch.float32), (torch.bfloat16, torch.float16), (torch.float32, torch.int32),
        (torch.int64, torch.int32), (torch.int32, torch.float16), (torch.complex64, torch.float16),
    ],
)  # fmt: skip
def test_only_coarser_floating_point_types_are_a_lower_precision(expected, actual):
    """Finer dtypes, integers and complex numbers are still a difference."""
    difference = compare_tensors(torch.ones(3).to(actual), torch.ones(3).to(expected), lower_precision=True)
    assert difference.problem is not None
    assert not difference.close


def test_numbers_are_compared_in_lower_precision_as_they_are():
    """The error of a rounded value is its rounding, and a wrong value is found."""
    expected = torch.tensor([1.0, 3.0001, 100.1])
    actual = expected.half()
    found = compare_tensors(actual, expected, lower_precision=True)
    assert found.absolute == float((actual.double() - expected.double()).abs().max())
    assert found.close
    actual[1] = -3.0
    assert not compare_tensors(actual, expected, lower_precision=True).close


def test_a_shape_that_differs_is_a_difference_in_lower_precision_too():
    """Tensors are not broadcast."""
    assert "shape" in str(compare_tensors(torch.ones(1).half(), torch.ones(3), lower_precision=True).problem)


VALUES = torch.tensor([1.0, 70000.0, -1e30, float("inf"), 2.0, float("nan")])


@pytest.mark.parametrize(
    ("end", "counts", "told"),
    [(torch.inf, (2, 0, 2), "2 overflowed"), (torch.finfo(torch.float16).max, (0, 3, 1), "3 clipped")],
)
def test_values_that_became_inf_or_stand_at_the_end_of_their_type_are_counted(end, counts, told):
    """70000, -1e30 and, where they are clipped, inf are beyond 65504; inf and NaN in the reference are no overflow."""
    found = compare_tensors(VALUES.clamp(-end, end).half(), VALUES, lower_precision=True)
    assert (found.overflowed, found.clipped, found.nonfinite, found.close) == (*counts, False)
    assert told in str(found)


@pytest.mark.parametrize("end", [-65504.0, -65472.0, -float("inf")])
def test_the_lowest_number_of_a_type_is_the_lowest_of_another(end):
    """A mask of -3.4e38 is about -65504 in float16; a number that is merely too large is no mask."""
    expected = torch.tensor([1.0, torch.finfo(torch.float32).min])
    assert compare_tensors(torch.tensor([1.0, end]).half(), expected, lower_precision=True).close
    for wrong in (0.0, -1000.0, -end, float("nan")):
        assert not compare_tensors(torch.tensor([1.0, wrong]).half(), expected, lower_precision=True).close
    assert not compare_tensors(
        torch.tensor([1.0, end]).half(), torch.tensor([1.0, -70000.0]), lower_precision=True
    ).close
    assert not compare_tensors(torch.tensor([1.0, end]), expected).close


@pytest.mark.parametrize("end", [65504.0, float("inf")])
def test_the_largest_number_is_no_mask(end):
    """An inf for 3.4e38 is an overflow, although 3.4e38 is near the end of its dtype's range."""
    expected = torch.tensor([1.0, torch.finfo(torch.float32).max])
    found = compare_tensors(torch.tensor([1.0, end]).half(), expected, lower_precision=True)
    assert (found.close, found.overflowed, found.clipped) == (False, int(end == float("inf")), int(end == 65504.0))


def test_a_large_number_is_no_mask():
    """-40000 is not near the end of float16's range, and beyond that of float8."""
    actual = torch.tensor([1.0, -448.0]).to(torch.float8_e4m3fn)
    assert not compare_tensors(actual, torch.tensor([1.0, -40000.0]).half(), lower_precision=True).close


def test_clipped_values_are_counted_where_nothing_is_infinite():
    """Values measured in float32 are also checked if any of them is beyond the range of its dtype."""
    found = compare_tensors(torch.tensor([1.0, -65504.0]).half(), torch.tensor([1.0, -70000.0]), lower_precision=True)
    assert (found.overflowed, found.clipped, found.nonfinite) == (0, 1, 0)


def test_weights_only_in_8_bits_are_judged_with_the_tolerance_of_8_bits(inputs):
    """As torchao exports it, the weight is int8 with a cast, without ONNX's operators for quantized numbers."""

    class Weights(nn.Module):
        def __init__(self, linear):
            super().__init__()
            scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
            self.register_buffer("scale", scale)
            self.register_buffer("integers", (linear.weight.detach() / scale).round().to(torch.int8))

        def forward(self, x):
            return x @ (self.integers.float() * self.scale).T

    torch.manual_seed(0)
    linear = nn.Linear(32, 16, bias=False)
    program = export(nn.Sequential(Weights(linear)), (inputs,))
    capture = capture_of(nn.Sequential(linear), inputs, submodules=True)
    assert not compare(capture, program).close
    report = compare(capture, program, lower_precision=True)
    report.assert_close()
    assert 30 < outputs(report)[0].difference.snr < 60


def test_what_is_nan_by_mistake_has_overflowed_in_its_own_precision_too():
    """Overflows are counted for equal dtypes too."""
    found = compare_tensors(torch.tensor([float("nan"), 2.0, 1.0]), torch.tensor([1.0, 2.0, float("inf")]))
    assert (found.overflowed, found.nonfinite, found.clipped) == (1, 2, 0)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.complex64, torch.int8, torch.bool])
def test_counting_works_for_all_types(dtype):
    """Some dtypes have no arithmetic in torch."""
    expected, actual = torch.tensor([1.0, 2.0]).to(dtype), torch.tensor([1.0, 0.0]).to(dtype)
    found = compare_tensors(actual, expected)
    assert (found.close, found.clipped) == (torch.equal(expected.to(torch.complex64), actual.to(torch.complex64)), 0)


@pytest.mark.parametrize("lower_precision", [False, True])
def test_a_float16_model_is_close_to_its_own_capture(model, inputs, lower_precision):
    """Equal dtypes need no permission; ONNX Runtime computes in float32, so casts are judged by what they cast."""
    half, x = copy.deepcopy(model).half(), inputs.half()
    report = compare(capture_of(half, x, submodules=True), export(half, (x,)), lower_precision=lower_precision)
    report.assert_close()
    assert {row.dtype for row in outputs(report)} == {"float16"}
    assert not [row for row in report.modules if row.difference is not None and row.difference.problem]


def test_a_float16_program_is_held_against_the_float32_model(model, inputs, capture):
    """Its inputs are rounded, with a note; the references are the captured and given float32 tensors."""
    program = export(copy.deepcopy(model).half(), (inputs.half(),))
    with pytest.raises(BackendError, match="Unexpected input data type"):
        compare(capture, program)
    report = compare(capture, program, lower_precision=True)
    report.assert_close()
    assert any("takes x as float16: what the model was given is rounded" in note for note in report.notes)
    assert {row.evidence for row in report.rows if row.judged} == {"module", "given"}
    assert {row.difference.tolerance for row in outputs(report)} == {default_tolerance(torch.float16)}
    assert all(row.difference.error > 0 for row in outputs(report))


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_every_value_of_a_lowered_program_is_judged(capture, program, to):
    """A cast has the reference of its input; without permission, each value of another dtype differs."""
    lowered = lower(program, to)
    report = compare(capture, lowered, backend="reference", lower_precision=True)
    report.assert_close()
    assert all(row.judged for row in report.rows)
    strict = compare(capture, lowered, backend="reference")
    assert {row.dtype for row in strict.rows if row.status == "shape or dtype differs"} == {to}


def test_an_overflow_in_the_program_is_the_first_divergence():
    """It is the square that overflows, not a value computed from it."""
    x = torch.tensor([1.0, 100.0, 300.0, 400.0])
    model = module_of(lambda self, x: torch.sqrt(x * x) * 2)
    lowered = lower(export(model, (x,)), "float16", simulate=True)
    report = compare(capture_of(model, x, submodules=True), lowered, lower_precision=True)
    # What is simulated is float32 until it is cast, and then float16.
    first = report.first_divergence
    assert (first.value, first.difference.overflowed) == (
        "mul_float16",
        int((x * x > torch.finfo(torch.float16).max).sum()),
    )
    assert not any(row.status == "same" for row in outputs(report))


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_a_constant_that_simulation_rounds_is_right_and_a_wrong_one_is_found(to):
    """Both are float32 numbers that are exact in the coarser dtype."""

    class Third(nn.Module):
        def forward(self, x):
            return x + 1 / 3

    x = torch.tensor([1.0, 2.0])
    lowered = lower(export(Third(), (x,)), to, simulate=True)
    capture = capture_of(Third(), x, submodules=True)
    report = compare(capture, lowered, stages=["exported"], lower_precision=True)
    report.assert_close()
    (row,) = [row for row in report.rows if row.kind == "constant"]
    assert (row.dtype, row.judged, row.difference.absolute > 0) == ("float32", True, True)

    (constant,) = [node for node in lowered.model.graph if node.op_type == "Constant"]
    constant.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.array(0.375, np.float32)))
    first = compare(capture, lowered, stages=["exported"], lower_precision=True).first_divergence
    assert (first.value, first.float64.verdict) == (constant.outputs[0].name, "wrong")


def test_weights_held_in_float16_are_judged_with_its_tolerance(inputs):
    """Everything is computed in float32, from coarser weights."""

    class Weights(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.register_buffer("weight", linear.weight.detach().half())

        def forward(self, x):
            return x @ self.weight.float().T

    torch.manual_seed(0)
    linear = nn.Linear(32, 16, bias=False)
    capture, program = (
        capture_of(nn.Sequential(linear), inputs, submodules=True),
        export(nn.Sequential(Weights(linear)), (inputs,)),
    )
    assert not compare(capture, program).close
    compare(capture, program, lower_precision=True).assert_close()


@pytest.mark.parametrize("to", ["float16", "int8"])
def test_values_that_are_let_go_are_judged_alike(capture, program, inputs, to):
    """A tiny buffer changes no verdict, although values derived in other parts are rounded differently."""
    lowered = lower(program, to, calibration=[{program.graph.inputs[0]: inputs}])
    whole, parts = (compare(capture, lowered, lower_precision=True, buffer=size) for size in (2**28, 1))
    told, told_in_parts = ([(row.value, row.status, row.evidence) for row in found.rows] for found in (whole, parts))
    assert told == told_in_parts
    assert whole.close
    assert parts.close


def quantized(scale, zero, values):
    """x, as uint8 of this scale and zero point, and back."""
    shape = list(values.shape)
    return serde.deserialize_model(
        onnx_model(
            f"(float{shape} x) => (float{shape} y) <float scale = {{{scale}}}, uint8 zero = {{{zero}}}> {{"
            "[quantize] q = QuantizeLinear(x, scale, zero) [dequantize] y = DequantizeLinear(q, scale, zero) }"
        )
    )


def same():
    """A model that returns its input."""
    return module_of(lambda self, x: x.clone())


def test_values_clipped_by_integers_are_counted():
    """uint8 with scale 0.5 and zero point 100 has the range -50 to 77.5: two values are below, one is above."""
    x = torch.tensor([-60.0, -50.3, -50.2, -50.0, 0.0, 77.5, 77.7, 100.0])
    report = compare(capture_of(same(), x, submodules=True), quantized(0.5, 100, x), lower_precision=True)
    row = row_of(report, "y")
    assert row.difference.clipped == 3
    assert row.difference.absolute == pytest.approx(100.0 - 77.5)
    integers = row_of(report, "q")
    assert (integers.status, "integers" in integers.reason) == ("no value", True)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_what_is_not_finite_never_passes_for_quantized(scale):
    """The tolerance of 8 bits allows large errors of single elements, but no NaN and no inf."""
    x = torch.tensor([0.5, 1.0, 2.0])
    report = compare(capture_of(same(), x, submodules=True), quantized(scale, 0, x), lower_precision=True)
    assert not report.close
    assert row_of(report, "y").difference.overflowed > 0


def test_the_coarsest_integers_on_the_way_say_the_tolerance():
    """A value computed from 4-bit weights keeps that tolerance if it is quantized to 8 bits afterwards."""
    model = onnx_model(
        """(float[1, 2] x) => (float[1, 2] y) <float scale = {0.5}, int8 zero = {0}> {
            weight = DequantizeLinear(four, scale) product = MatMul(x, weight)
            q = QuantizeLinear(product, scale, zero) y = DequantizeLinear(q, scale, zero)
        }""",
        opset=21,
    )
    model.graph.initializer.append(helper.make_tensor("four", TensorProto.INT4, [2, 2], [1, 2, 3, 4]))
    limits = Limits(Program(serde.deserialize_model(model)).graph, None, lower_precision=True)
    assert {limits.of(name, torch.float32).scale for name in ("weight", "product", "y")} == {0.5}


def test_integers_that_clip_nothing_are_close():
    """The error is at most half a step, within the tolerance of 8 bits and beyond that of float32."""
    x = torch.linspace(-12, 12, 50)
    report = compare(capture_of(same(), x, submodules=True), quantized(0.1, 128, x), lower_precision=True)
    report.assert_close()
    assert row_of(report, "y").difference.clipped == 0
    assert row_of(report, "y").difference.absolute <= 0.0501
    assert not compare(capture_of(same(), x, submodules=True), quantized(0.1, 128, x)).close


def test_clipping_is_in_every_form_of_the_report():
    """The wide table, JSON and CSV have columns for it."""
    x = torch.tensor([-60.0, 0.0, 1.0])
    report = compare(capture_of(same(), x, submodules=True), quantized(0.5, 100, x), lower_precision=True)
    assert {"overflowed", "clipped"} <= set(report.table(wide=True).split())
    rows = json.loads(report.to_json())["rows"]
    assert next(
        (row["difference"]["overflowed"], row["difference"]["clipped"]) for row in rows if row["value"] == "y"
    ) == (0, 1)
    assert "overflowed,clipped" in report.to_csv().splitlines()[0]
    view = report.table("precision", width=80)
    assert max(map(len, view.splitlines())) <= 80
    assert any(
        line.split()[-3:] == [f"{row_of(report, 'y').difference.snr:.0f}", "1", "<------"] for line in view.splitlines()
    )


def test_an_int8_program_is_judged_where_its_numbers_are_numbers(capture, program, inputs):
    """Integers have no reference; a dequantized value has that of the value that was quantized."""
    lowered = lower(program, "int8", calibration=[{program.graph.inputs[0]: inputs}])
    report = compare(capture, lowered, lower_precision=True)
    report.assert_close()
    assert row_of(report, "x_DequantizeLinear_Output").difference.snr > 30
    unjudged = [row for row in report.rows if row.stage == "exported" and not row.judged]
    assert {row.dtype for row in unjudged if row.op == "QuantizeLinear"} == {"uint8"}
    # ONNX Runtime's tool removes the Relu, and gives the Relu's input the name of its output.
    assert [row.value for row in unjudged if row.op != "QuantizeLinear"] == ["relu"]


def test_weights_that_others_went_into_have_no_reference():
    """A fused BatchNormalization changes the convolution's weights and keeps their names."""
    torch.manual_seed(0)
    model = module_of(
        lambda self, x: torch.relu(self.norm(self.conv(x))), conv=nn.Conv2d(3, 8, 3), norm=nn.BatchNorm2d(8)
    ).eval()
    x = torch.randn(2, 3, 8, 8)
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.2, 3)
    program = optimize(export(model, (x,)))
    assert [node.op for node in program.graph.nodes] == ["Conv", "Relu"]
    report = compare(
        capture_of(model, x, submodules=True), lower(program, "int8", calibration=[{"x": x}]), lower_precision=True
    )
    report.assert_close()
    unjudged = {row.value for row in report.rows if row.stage == "exported" and row.status == "not mapped"}
    assert {"conv.weight_DequantizeLinear_Output", "relu_QuantizeLinear_Input"} <= unjudged
    assert all(row.judged for row in outputs(report))


def test_an_int8_program_of_too_narrow_ranges_is_found(capture, program, inputs):
    """It is calibrated with a tenth of the inputs: the first quantized value is clipped, and reported as such."""
    name = program.graph.inputs[0]
    report = compare(capture, lower(program, "int8", calibration=[{name: inputs / 10}]), lower_precision=True)
    first = report.first_divergence
    assert first.value == f"{name}_DequantizeLinear_Output"
    low, high = float((inputs / 10).min()), float((inputs / 10).max())
    beyond = int(((inputs < low * 1.1) | (inputs > high * 1.1)).sum())
    assert first.difference.clipped >= beyond > inputs.numel() // 2


def test_a_tolerance_given_holds_for_integers_too(capture, program, inputs):
    """The default tolerance would pass; the user's does not."""
    lowered = lower(program, "int8", calibration=[{program.graph.inputs[0]: inputs}])
    assert not compare(capture, lowered, lower_precision=True, tolerance=Tolerance(1e-3, 1e-3)).close


def test_4_bit_weights_are_judged(capture, program):
    """MatMulNBits has the result of the MatMul that it replaces, within the precision of 4 bits."""
    lowered = lower(program, "int4")
    report = compare(capture, lowered, lower_precision=True)
    report.assert_close()
    packed = [row for row in report.rows if row.op == "com.microsoft::MatMulNBits" and row.stage == "exported"]
    assert len(packed) == 2
    assert all(row.judged and 10 < row.difference.snr < 40 for row in packed)
    assert not compare(capture, lowered).close


def test_a_dynamically_quantized_file_is_judged(capture, program, tmp_path, caplog):
    """DynamicQuantizeLinear and MatMulInteger compute the value of the MatMul."""
    from onnxruntime.quantization import quantize_dynamic

    program.save(tmp_path / "float.onnx")
    with caplog.at_level("CRITICAL"):
        quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx", reduce_range=products_saturate())
    (tmp_path / "float.onnx.pt2").rename(tmp_path / "dynamic.onnx.pt2")
    report = compare(capture, tmp_path / "dynamic.onnx", lower_precision=True)
    report.assert_close()
    assert any(row.reason.startswith("integers") for row in report.rows)
    assert not compare(capture, tmp_path / "dynamic.onnx").close


@pytest.mark.parametrize("keep_io_types", [True, False])
def test_a_file_of_onnx_runtimes_float16_converter_is_judged(capture, program, tmp_path, keep_io_types):
    """Its nodes are not in a valid order; each cast has the reference of its input."""
    import onnx

    converter = pytest.importorskip("onnxruntime.transformers.float16")
    program.save(tmp_path / "float.onnx")
    half = converter.convert_float_to_float16(onnx.load(tmp_path / "float.onnx"), keep_io_types=keep_io_types)
    onnx.save(half, tmp_path / "half.onnx")
    (tmp_path / "float.onnx.pt2").rename(tmp_path / "half.onnx.pt2")
    report = compare(capture, tmp_path / "half.onnx", lower_precision=True)
    report.assert_close()
    assert all(row.judged for row in report.rows if row.stage == "exported")


def test_the_command_line_allows_lower_precision(model, inputs, program, tmp_path):
    """With `--lower-precision` the exit code is 0 instead of 1."""
    with torch.no_grad(), steal_forward(model, submodules=True, dump_file=tmp_path / "ref.onnx"):
        model(inputs)
    lower(program, "float16").save(tmp_path / "half.onnx")
    command = ["compare", str(tmp_path / "ref.onnx"), str(tmp_path / "half.onnx"), "--quiet"]
    codes = []
    for arguments in (command, [*command, "--lower-precision"]):
        with pytest.raises(SystemExit) as ended:
            app(arguments)
        codes.append(ended.value.code)
    assert codes == [1, 0]


@pytest.mark.parametrize("run", ["float16", "TF32"])
def test_a_wrong_weight_in_the_program_is_not_explained_by_what_a_coarser_run_rounds(
    run, model, capture, inputs, monkeypatch
):
    """The model ran in float32: its distance from what float64 computes with the wrong weight is no rounding."""

    def report_of(subject):
        program = export(subject, (inputs,))
        if run == "float16":
            return compare(capture, lower(program, run), lower_precision=True)
        return compare(capture, program, backend="eager")

    monkeypatch.setattr("filch.export.backends._eager.tf32_products", lambda _: {"matmul"})
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong.last.weight.mul_(1.03)

    assert report_of(model).close
    report = report_of(wrong)
    assert report.first_divergence is not None, report
    assert report.first_divergence.module == "last"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_wrong_weight_is_not_explained_by_the_rounding_of_a_model_in_a_coarse_dtype(dtype, model, inputs):
    """The program computes what float64 does; it is the model's value that is far from both."""
    right, x = copy.deepcopy(model).to(dtype), inputs.to(dtype)
    wrong = copy.deepcopy(right)
    with torch.no_grad():
        wrong.last.weight.mul_(1.25)
    with torch.no_grad(), steal_forward(right, submodules=True) as taken:
        right(x)

    assert compare(taken, export(right, (x,)), backend="eager").close
    report = compare(taken, export(wrong, (x,)), backend="eager")
    assert report.first_divergence is not None, report
    assert report.first_divergence.module == "last"
