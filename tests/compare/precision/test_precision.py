"""Test `keep_precise` with planted faults, clean models and goals out of reach."""

import json
import math

import pytest
import torch
from torch import nn

from filch.compare import CompareError, Difference, Goal, OutputDifferences, Tolerance, compare_tensors, keep_precise
from filch.compare.cli._app import app, main
from filch.export import BackendError, ExportError, export, lower, optimize
from filch.export.backends import get_backend
from filch.steal import steal_forward
from support.models.small import capture_of, module_of


def root_mean_square():
    """A model in which only the squares of numbers around 300 overflow in float16."""

    def forward(self, x):
        hidden = self.first(x) * 300.0
        square = hidden * hidden
        return self.last(torch.relu(hidden * torch.rsqrt(square.mean(-1, keepdim=True) + 1e-6)))

    return module_of(forward, first=nn.Linear(32, 64), last=nn.Linear(64, 16))


class Outlier(nn.Module):
    """A model with one large, unused channel between two layers, which determines the quantization range."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)
        self.last = nn.Linear(32, 32)
        with torch.no_grad():
            self.second.weight[0] *= 20000.0
            self.last.weight[:, 0] = 0.0

    def forward(self, x):
        return self.last(self.second(torch.tanh(self.first(x))))


def subject(model, *args):
    capture = capture_of(model, *args)
    return capture, optimize(export(model, args))


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def overflowing(inputs):
    torch.manual_seed(0)
    return subject(root_mean_square().eval(), inputs)


@pytest.fixture(scope="module")
def found(overflowing):
    return keep_precise(*overflowing, to="float16")


def squares(program):
    """Return the names of the node that squares and the one that averages the squares."""
    return [
        node.name
        for node in program.graph.nodes
        if (node.op == "Mul" and len(set(node.inputs)) == 1) or node.op == "ReduceMean"
    ]


def test_only_the_nodes_that_overflow_are_kept(overflowing, found):
    """These are the two with numbers beyond float16."""
    assert list(found.keep) == squares(overflowing[1])
    assert not found.close
    assert not found.before.passes
    assert found.after.passes
    assert found.after.error < found.before.error / 100


def test_the_nodes_that_overflow_cost_most(overflowing, found):
    """They come first, and only they have overflowed elements."""
    assert {item.node for item in found.order[:2]} == set(squares(overflowing[1]))
    for item in found.order:
        assert bool(item.isolated.overflowed) == (item.node in found.keep), item
    costs = [item.alone.snr for item in found.order if item.alone is not None]
    assert costs == sorted(costs)


def test_overflows_of_a_node_are_counted_as_they_are(overflowing, found, inputs):
    """The count equals the squares beyond 65504 of numbers rounded to float16."""
    name = squares(overflowing[1])[0]
    program = overflowing[1]
    node = next(node for node in program.graph.nodes if node.name == name)
    engine = get_backend("onnxruntime-cpu")
    made = engine.compile(program, optimize=False)
    hidden = engine.run(made, {program.graph.inputs[0]: inputs}, [node.inputs[0]])[node.inputs[0]]
    expected = int((hidden.half().float() ** 2).half().isinf().sum())
    assert next(item for item in found.order if item.node == name).isolated.overflowed == expected > 0


def test_the_errors_are_those_of_programs_that_anybody_can_make(overflowing, found, inputs):
    """`before`, `after` and `without` equal the errors of programs lowered and run here."""
    capture, program = overflowing
    expected = capture["", 0, "O"]

    def error(*keep):
        engine = get_backend("onnxruntime-cpu")
        made = engine.compile(lower(program, "float16", keep=keep, simulate=True), optimize=True)
        output = engine.run(made, {program.graph.inputs[0]: inputs})[program.graph.outputs[0]]
        return compare_tensors(output, expected).error

    assert (found.before.error, found.after.error) == (error(), error(*found.keep))
    assert set(found.without) == set(found.keep)
    for name, outcome in found.without.items():
        assert outcome.error == error(*(other for other in found.keep if other != name))
        assert not outcome.passes


def test_a_note_says_what_is_simulated(found):
    """The note also has the outcome without simulation on the same backend."""
    assert any("float16 was simulated" in note and "error" in note for note in found.notes)


def test_a_backend_that_rounds_is_not_simulated(overflowing):
    """onnx.reference computes in float16 itself, and needs the same nodes in float32."""
    report = keep_precise(*overflowing, to="float16", backend="reference", measure=0)
    assert list(report.keep) == squares(overflowing[1])
    assert report.notes == ()


def test_a_type_of_a_larger_range_needs_no_node(overflowing):
    """bfloat16 has the range of float32."""
    report = keep_precise(*overflowing, to="bfloat16", measure=2)
    assert report.close
    assert (report.keep, report.after) == ((), report.before)
    assert sum(item.alone is not None for item in report.order) == 2
    assert any("can't be run" in note for note in report.notes)


def test_a_goal_that_float32_misses_has_no_list(overflowing):
    """With tolerance 0 even the float32 program misses the goal."""
    report = keep_precise(*overflowing, to="float16", tolerance=0.0)
    assert (report.close, report.keep, report.after) == (False, (), None)
    assert not report.best.passes
    assert "the goal is missed with every node in float32, too" in str(report)


def test_every_node_of_the_list_is_needed(overflowing):
    """A stricter goal needs more nodes, and is missed without any one of them."""
    report = keep_precise(*overflowing, to="float16", tolerance=1e-4, measure=0)
    assert len(report.keep) > 2
    assert report.after.passes
    assert report.after.error <= 1e-4
    assert not any(outcome.passes for outcome in report.without.values())


def test_an_outlier_among_channels_is_found_in_int8(inputs):
    """The layer that computes it or the one that reads it is kept; the first layer is not."""
    torch.manual_seed(0)
    capture, program = subject(Outlier().eval(), inputs)
    report = keep_precise(capture, program, to="int8", snr=25)
    modules = {node.module for node in program.graph.nodes if node.name in report.keep}
    assert modules
    assert modules <= {"second", "last"}
    assert report.before.snr < 25 <= report.after.snr
    assert report.order[0].module in {"second", "last"}


def test_a_layer_that_needs_more_than_4_bits_is_found(inputs):
    """Small weights vanish if one weight of their block is a hundred times larger."""
    torch.manual_seed(0)
    model = Outlier().eval()
    with torch.no_grad():
        model.second.weight[0] /= 20000.0
        model.second.weight[:, 3] *= 100.0
        model.first.weight[3] = 0.0  # the input of the large weights is 0
        model.first.bias[3] = 0.0
    capture, program = subject(model, inputs)
    report = keep_precise(capture, program, to="int4")
    kept = [node for node in program.graph.nodes if node.name in report.keep]
    assert [(node.op, node.module) for node in kept] == [("MatMul", "second")]
    assert len(report.order) == 3


def test_every_call_of_a_capture_has_to_pass(inputs):
    """The second call overflows, the first does not."""
    torch.manual_seed(0)
    model = root_mean_square().eval()
    program = optimize(export(model, (inputs,)))
    capture = capture_of(model, inputs / 1000)
    assert keep_precise(capture, program, to="float16", measure=0).close
    with torch.no_grad(), steal_forward(model) as capture:
        model(inputs / 1000)
        model(inputs)
    assert list(keep_precise(capture, program, to="float16", measure=0).keep) == squares(program)


def test_nan_and_missing_outputs_never_pass():
    """No goal accepts them."""
    expected = torch.ones(4)
    wrong = [torch.tensor([1.0, 1.0, 1.0, bad]) for bad in (math.nan, math.inf, -math.inf)]
    for goal in (Goal(snr=-1000.0), Goal.of("float16", 1e300, None), Goal.of("int8", None, None)):
        assert goal.met(goal.measure(expected, expected))
        for actual in (*wrong, None, torch.ones(1), torch.ones(4).int()):
            difference = goal.measure(actual, expected)
            assert not goal.met(difference)
            assert not OutputDifferences.of([goal.measure(expected, expected), difference], goal).passes
    assert not OutputDifferences.of([], Goal(snr=0.0)).passes


def test_indices_have_to_be_exact_whatever_the_ratio():
    """A wrong index fails although its SNR is high."""
    goal = Goal(snr=1.0)
    difference = goal.measure(torch.tensor([1000, 2001]), torch.tensor([1000, 2000]))
    assert difference.snr > 60
    assert not goal.met(difference)


def test_the_worst_output_is_what_counts():
    """An outcome has the largest error and the lowest ratio of all outputs."""
    goal = Goal(snr=10.0)
    limits = Tolerance(1e-3, 1e-1)
    good = Difference(close=True, error=0.1, snr=50.0, tolerance=limits)
    bad = Difference(close=True, error=0.2, snr=5.0, tolerance=limits)
    outcome = OutputDifferences.of([good, bad], goal)
    assert OutputDifferences.of([good], goal).passes
    assert (outcome.passes, outcome.error, outcome.snr) == (False, 0.2, 5.0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"to": "float16", "tolerance": 1e-3, "snr": 20.0}, CompareError, "a tolerance or an SNR, not both"),
        ({"to": "float16", "snr": math.nan}, CompareError, "a number of decibels, not nan"),
        ({"to": "float12"}, ExportError, "there is no precision 'float12'"),
        (
            {"to": "bfloat16", "simulate": False},
            BackendError,
            "ONNX Runtime refuses the program.* which reads bfloat16",
        ),
    ],
)
def test_invalid_options_are_refused(overflowing, options, error, message):
    """The error has the type and message of the option."""
    with pytest.raises(error, match=message):
        keep_precise(*overflowing, **options)


def test_the_report_fits_in_80_columns(found):
    """It has the table of costs, the names of the kept nodes, and the outcomes before and after."""
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert f"these 2 nodes are kept in float32: {found.after}" in text
    assert f"all lowered: {found.before}" in text
    assert all(name in text for name in found.keep)


def test_the_report_is_json_too(found):
    """JSON has the cost of every node."""
    held = json.loads(found.to_json())
    assert held["keep"] == list(found.keep)
    assert (held["before"]["passes"], held["after"]["passes"], held["close"]) == (False, True, False)
    assert [item["node"] for item in held["order"]] == [item.node for item in found.order]


FACTORY = """
import torch
from torch import nn

class Square(nn.Module):
    def forward(self, x):
        return torch.sqrt(x * x) * 0.01

def small():
    return Square(), (torch.arange(1.0, 9.0),)

def large():
    return Square(), (torch.arange(1.0, 9.0) * 1000,)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["small", "--to", "float16"], 0, "no node has to be kept in float32"),
        (["large", "--to", "float16"], 1, "node_mul"),
        (["large", "--to", "float16", "--json"], 1, '"filch_precision": 1'),
    ],
)
def test_the_command_says_by_its_exit_code_whether_precision_matters(tmp_path, capsys, arguments, code, message):
    """The code is 0 if the goal is met with every node lowered, and 1 if not."""
    (tmp_path / "model.py").write_text(FACTORY)
    with pytest.raises(SystemExit) as ended:
        app(["precision", f"{tmp_path / 'model.py'}:{arguments[0]}", *arguments[1:]])
    assert ended.value.code == code
    assert message in capsys.readouterr().out


def test_an_unknown_precision_exits_with_2(tmp_path, capsys, monkeypatch):
    """The error names it."""
    (tmp_path / "model.py").write_text(FACTORY)
    monkeypatch.setattr("sys.argv", ["filch", "precision", f"{tmp_path / 'model.py'}:small", "--to", "float12"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "'float12' is not one of 'float16'" in capsys.readouterr().err
