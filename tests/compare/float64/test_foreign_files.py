"""Files without a model: their values in float64 are computed by PyTorch, once for each node."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.utils._python_dispatch import TorchDispatchMode

from filch.compare import compare_programs
from filch.compare.float64._verdict import Float64Value, rounding_verdict, shares_error
from filch.compare.runs._evaluation import Float64Evaluator, ProgramRun, RunOptions
from filch.compare.runs._onnx_original import OnnxOriginal
from filch.export import Original, load_program
from filch.export.backends.onnxruntime import _backend

_MOST_PASSES = 33
RANDOM = np.random.default_rng(0)


def weight(name, *shape, least=None):
    numbers = RANDOM.standard_normal(shape) * 0.3
    numbers = numbers if least is None else np.abs(numbers) + least
    return numpy_helper.from_array(numbers.astype(np.float32), name)


def integers(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def saved(path, nodes, weights, shapes, opset):
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip("xy", shapes, strict=True)
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def convolutions(path, count, length=300):
    """Save dilated convolutions with batch normalization, as in WaveNet."""
    nodes, weights, last = [], [weight(name, 8, least=0.1) for name in "gbmv"], "x"
    for i in range(count):
        weights.append(weight(f"w{i}", 8, 8, 3))
        out = "y" if i == count - 1 else f"r{i}"
        nodes += [
            helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[2**i] * 2, dilations=[2**i]),
            helper.make_node("BatchNormalization", [f"c{i}", *"gbmv"], [f"n{i}"], f"norm{i}"),
            helper.make_node("Relu", [f"n{i}"], [out], f"relu{i}"),
        ]
        last = out
    return saved(path, nodes, weights, ([1, 8, length], [1, 8, length]), 9)


def test_a_file_of_dilated_convolutions(tmp_path, monkeypatch):
    """Each node is evaluated twice, with noise and without, and never by the evaluator of the specification."""
    path, counts, evaluate = convolutions(tmp_path / "a.onnx", 4), Counter[str](), Original.evaluate

    def counted(self, node, *args):
        counts[node] += 1
        return evaluate(self, node, *args)

    monkeypatch.setattr(Original, "evaluate", counted)
    monkeypatch.delattr("filch.export.evaluation._onnx_node.ReferenceEvaluator")
    report = compare_programs(path, path)
    assert report.close
    assert {*counts.values()} == {2} and len(counts) == 12


def test_weights_that_layers_share_by_identity_are_not_all_in_memory(tmp_path):
    """An exporter writes the nodes `Identity` first, one for each layer. Each is a value that may be wanted, too."""
    layers, stored = 6, weight("w", 16, 16)
    nodes = [helper.make_node("Identity", ["w"], [f"w{i}"], f"identity{i}") for i in range(layers)]
    names = ["x", *(f"r{i}" for i in range(1, layers)), "y"]
    nodes += [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], f"layer{i}") for i in range(layers)]
    program = load_program(saved(tmp_path / "a.onnx", nodes, [stored], ([2, 16], [2, 16]), 17))
    computed, x = [], torch.ones(2, 16)
    evaluator = Float64Evaluator(replace(program, original=OnnxOriginal(program.model)))
    options = RunOptions([*names, "w0"], observe=lambda node, *_: computed.append(node.name), noisy=False)
    run = ProgramRun(evaluator, {"x": x}, options)
    exact = torch.tensor(numpy_helper.to_array(stored)).double()
    assert torch.allclose(run.computed("y")[0], x.double() @ torch.linalg.matrix_power(exact, layers))
    assert computed == [f"layer{i}" for i in range(layers)]
    assert torch.equal(run.computed("w0")[0], exact)


def test_a_file_against_itself_runs_five_times_in_six_sessions(tmp_path, monkeypatch):
    """Once as the reference; and as it stands and optimized, each without and with all values."""
    path, made, runs = convolutions(tmp_path / "a.onnx", 3), Counter[str](), _backend.run

    class Session(ort.InferenceSession):
        def __init__(self, *args, **options):
            made["sessions"] += 1
            super().__init__(*args, **options)

    def counted(*args, **options):
        made["runs"] += 1
        return runs(*args, **options)

    monkeypatch.setattr(ort, "InferenceSession", Session)
    monkeypatch.setattr(_backend, "run", counted)
    assert compare_programs(path, path).close
    assert made == {"sessions": 6, "runs": 5}


class Passes(TorchDispatchMode):
    """Counts how many numbers the operations of PyTorch go over; views go over none.

    Attributes:
        numbers: how many, of the largest operand or the result of each operation.
        largest: the most of one operation.
    """

    def __init__(self):
        super().__init__()
        self.numbers = self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            count = max((item.numel() for item in (*args, result) if isinstance(item, torch.Tensor)), default=0)
            self.numbers += count
            self.largest = max(self.largest, count)
        return result


def test_the_passes_over_a_value_are_few(tmp_path):
    """Float64 evaluates it twice, on what it reads with noise; most passes are those of values that differ."""
    length = 10_000
    path = convolutions(tmp_path / "a.onnx", 3, length)

    with Passes() as passes:
        rows = compare_programs(path, path).rows

    assert len(rows) == 14
    assert passes.numbers / (len(rows) * 8 * length) < _MOST_PASSES


@pytest.mark.parametrize("differs", [False, True])
def test_a_pass_of_a_verdict_needs_no_threads(differs):
    """To start them for each pass takes longer than a pass: torch does for more than 2**15 numbers."""
    exact = torch.randn(300_000, dtype=torch.float64)
    value, other = exact.float(), (exact * (1 + 2**-23)).float()
    truth = Float64Value(exact, exact * (1 + 2**-23), 2**-24)

    with Passes() as passes:
        if differs:
            assert rounding_verdict(other, value, truth, unit=2**-24) is not None
        else:
            assert not shares_error(value, value, truth)

    assert 0 < passes.largest <= 2**15


@pytest.mark.parametrize("opset", [7, 9, 13, 15])
def test_a_detector_against_itself(tmp_path, opset):
    """Batch normalization before version 14, and a slice with a negative step, have float64 values."""
    ends = [integers(name, value) for name, value in (("st", -1), ("en", -(2**63) + 1), ("ax", 3), ("sp", -1))]
    flip = helper.make_node("Slice", ["n", "st", "en", "ax", "sp"], ["r"], "flip")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], "norm"),
        *([flip] if opset > 9 else [helper.make_node("Relu", ["n"], ["r"], "relu")]),
        helper.make_node("Mul", ["r", "r"], ["y"], "square"),
    ]
    weights = [weight("w", 4, 3, 3, 3), *(weight(name, 4, least=0.1) for name in "gbmv")]
    path = saved(tmp_path / "a.onnx", nodes, weights + (ends if opset > 9 else []), ([1, 3, 8, 8], [1, 4, 8, 8]), opset)
    report = compare_programs(path, path)
    assert report.close
    verdicts = [row.float64 for row in report.rows]
    assert {verdict and verdict.verdict for verdict in verdicts} <= {"same", "rounding"}


def float64_of(path, *names):
    """Return values in float64, and with noise."""
    program = load_program(path)
    evaluator = Float64Evaluator(replace(program, original=OnnxOriginal(program.model)))
    shape = program.graph.values["x"].shape or ()
    drawn = torch.randn([int(size) for size in shape], generator=torch.Generator().manual_seed(0))
    values = evaluator.of({"x": drawn}, names, keep=True)
    return [values.get(name) for name in names]


def test_settings_of_a_node_have_no_noise(tmp_path):
    """Scales of 2 less half a unit in the last place would give another shape, and no value in float64."""
    names = [f"s{index}" for index in range(6)]  # noise depends on the name
    weights = [numpy_helper.from_array(np.array([1, 1, 2, 1.5], np.float32), name) for name in names]
    limits = [f"l{index}" for index in range(6)]
    settings = {"z": 0, "d": 1, **dict.fromkeys(limits, 12)}
    weights += [numpy_helper.from_array(np.float32(value), name) for name, value in settings.items()]
    resized = [f"r{name}" for name in names]
    nodes = [helper.make_node("Resize", ["x", "", name], [f"r{name}"], mode="linear") for name in names]
    nodes += [helper.make_node("Range", ["z", name, "d"], [f"n{name}"]) for name in limits]
    ranges = [f"n{name}" for name in limits]
    nodes.append(helper.make_node("Sum", [*resized, *ranges], ["y"]))
    path = saved(tmp_path / "a.onnx", nodes, weights, ([1, 3, 8, 8], [1, 3, 16, 12]), 13)
    assert None not in float64_of(path, *resized, *ranges, "y")


def test_rounding_of_what_a_kernel_adds(tmp_path):
    """A sigmoid is 1/2 plus a quotient, so its rounding is that of 1/2, however small it is; a wrong slope is found."""
    weights = [numpy_helper.from_array(np.float32(14), "t")]
    nodes = [helper.make_node("Sub", ["x", "t"], ["m"], "sub"), helper.make_node("Sigmoid", ["m"], ["y"], "sigmoid")]
    path = saved(tmp_path / "a.onnx", nodes, weights, ([40, 40], [40, 40]), 13)
    (value,) = float64_of(path, "y")
    assert value is not None
    assert 1e-8 < float((value.noisy - value.value).abs().max()) < 6e-8
    assert compare_programs(path, path).close
    wrong = [nodes[0], helper.make_node("HardSigmoid", ["m"], ["y"], "sigmoid")]
    assert not compare_programs(path, saved(tmp_path / "b.onnx", wrong, weights, ([40, 40], [40, 40]), 13)).close


def test_rounding_in_a_branch(tmp_path):
    """All of a network is in a branch, as in voice detectors: its values are rounded there, too; a fault is found."""

    def branch(name, op):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], [f"{name}m"]),
            helper.make_node("Sub", [f"{name}m", "t"], [f"{name}t"]),
            helper.make_node(op, [f"{name}t"], [name]),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    def program(name, op):
        branches = {"then_branch": branch("a", op), "else_branch": branch("b", op)}
        node = helper.make_node("If", ["c"], ["y"], "if", **branches)
        return saved(tmp_path / name, [node], weights, ([8, 40], [8, 40]), 13)

    weights = [weight("w", 40, 40), numpy_helper.from_array(np.float32(14), "t")]
    weights.append(numpy_helper.from_array(np.array(True), "c"))
    path = program("a.onnx", "Sigmoid")
    report = compare_programs(path, path)
    assert report.close
    assert {verdict.verdict for row in report.rows if (verdict := row.float64)} <= {"same", "rounding"}
    assert not compare_programs(path, program("b.onnx", "HardSigmoid")).close


def test_a_constant_that_was_clipped_is_not_wrong_in_both(tmp_path):
    """The reference cast to float16 has its largest number, and is as far from float64 as what it is compared with."""

    def file(dtype, numbers):
        constant = helper.make_node(
            "Constant", [], ["c"], "big", value=numpy_helper.from_array(np.array(numbers, dtype))
        )
        nodes = [
            constant,
            helper.make_node("Cast", ["c"], ["d"], "cast", to=1),
            helper.make_node("Div", ["x", "d"], ["y"]),
        ]
        return saved(tmp_path / f"{dtype}.onnx", nodes, [], ([2, 3], [2, 3]), 15)

    right, clipped = file("float32", [1e7, 2e7, 9e7]), file("float16", [1e4, 1e4, 1e4])
    report = compare_programs(right, clipped, lower_precision=True)
    assert report.first_divergence is not None and report.first_divergence.node == "big"
    assert "both are wrong" not in str(report)
