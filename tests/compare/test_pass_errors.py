"""The pass that brings an error in is named, a clean pipeline names none, and the command line shows it."""

import json

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import CompareError, CompareInstrument
from filch.compare.cli._app import main
from filch.export import PassError, export, optimize
from filch.export.backends import get_backend
from filch.export.passes import PassContext, default_passes, pass_names
from support.models.small import capture_of
from support.thorough import slow

CORRECT = ("InlinePass", "FoldConstantPass", "SubgraphRewritePass")
BEHIND = ("CommonSubexpressionEliminationPass", "OrtExtendedPass")


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.linear = nn.Embedding(16, 8), nn.LayerNorm(8, eps=1e-3), nn.Linear(8, 4)

    def forward(self, ids):
        x = self.embedding(ids)
        return self.linear(self.norm(x - x.mean(1, keepdim=True)))


class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.batch_norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-3)

    def forward(self, x):
        x = torch.relu(self.batch_norm(self.conv(x)))
        return self.norm(self.linear(x.mean((2, 3)) - x.amax((2, 3))))


INPUTS = {Text: lambda: torch.arange(12).reshape(2, 6), Pixels: lambda: torch.randn(2, 3, 8, 8)}


@pytest.fixture(scope="module")
def made():
    """By the model's class, its capture and its program."""
    torch.manual_seed(0)
    found = {}
    for kind, inputs in INPUTS.items():
        model, given = kind().eval(), inputs()
        capture = capture_of(model, given, submodules=True)
        found[kind] = capture, export(model, (given,))
    return found


@pytest.fixture(scope="module")
def optimized(made):
    capture, program = made[Pixels]
    return capture, optimize(program)


@pytest.fixture
def judged():
    """Return a function that runs passes and returns the instrument."""

    def run(one, passes, **options):
        capture, program = one
        with PassContext() as context:
            instrument = context.compare_instrument(capture, **options)
            try:
                optimize(program, passes)
            except PassError as error:
                instrument.error = error
        return instrument

    return run


def nothing(program):
    return program


def _node(program, op):
    return next(node for node in program.model.graph if node.op_type == op)


def scale_weight(program):
    """Make the weight of the linear layer 1 % too large."""
    weight = next(node for node in program.model.graph if node.op_type in ("MatMul", "Gemm")).inputs[1]
    weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.01), name=weight.name)
    return program


def scale_in_place(program):
    """Scale the weight in place, in a copy that is already in the graph."""
    program.model.graph.initializers["linear.weight"].const_value.numpy()[:] *= np.float32(1.01)
    return program


def own_weight(program):
    """Add a copy of the weight, for `scale_in_place`."""
    weight = program.model.graph.initializers["linear.weight"]
    weight.const_value = ir.tensor(weight.const_value.numpy().copy(), name=weight.name)
    return program


def swap_operands(program):
    """Swap the operands of a subtraction."""
    node = _node(program, "Sub")
    first, second = node.inputs
    node.replace_input_with(0, second)
    node.replace_input_with(1, first)
    return program.model


def drop_epsilon(program):
    """Remove the epsilon of a normalization."""
    node = _node(program, "LayerNormalization")
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 0.0)
    return program


def break_graph(program):
    """Insert an operator that does not exist."""
    _node(program, "Sub").op_type = "Subtraction"
    return program


def fails(program):
    raise ValueError("no such luck\nat all")


FAULTS = {scale_weight: ("MatMul", "Gemm"), swap_operands: ("Sub",), drop_epsilon: ("LayerNormalization",)}


# The pass at fault


@slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", INPUTS)
def test_a_wrong_pass_is_named(made, judged, kind, fault):
    """The report has the first value that the pass makes wrong, and its node; the other passes are correct."""
    instrument = judged(made[kind], [*CORRECT, fault, *BEHIND])

    assert not instrument.close
    assert instrument.culprit.name == fault.__name__
    assert instrument.culprit.index == len(CORRECT) + 1
    assert instrument.culprit.introduced.op in FAULTS[fault]
    assert instrument.culprit.diverged > 0
    assert [row.diverged for row in instrument.errors[: len(CORRECT) + 1]] == [0] * (len(CORRECT) + 1)
    assert all(row.introduced is None for row in instrument.errors[len(CORRECT) + 2 :])
    assert f"\n{fault.__name__}, pass 4, introduces the error: exported node" in str(instrument)


@pytest.mark.parametrize("kind", INPUTS)
def test_a_clean_pipeline_names_none(made, judged, kind):
    """The passes are those of torch and of ONNX Runtime."""
    instrument = judged(made[kind], [*default_passes(), *BEHIND])

    assert instrument.close
    assert instrument.culprit is None
    assert [row.name for row in instrument.errors] == ["Origin", *default_passes(), *BEHIND]
    assert instrument.errors[0].judged == instrument.errors[0].values == instrument.errors[0].nodes
    assert instrument.errors[0].seconds is None and instrument.errors[1].seconds >= 0
    assert "no pass introduces an error" in str(instrument)


# What has no place here: this processor's runtime has no bfloat16, and there is no MatMul to quantize.
@pytest.mark.parametrize("name", [name for name in pass_names() if name not in ("BFloat16Pass", "Int4Pass")])
def test_no_registered_pass_introduces_an_error(optimized, judged, name):
    """Each pass runs alone, on a graph that is already optimized."""
    instrument = judged(optimized, [name])
    assert instrument.close
    assert instrument.culprit is None


def test_a_weight_changed_in_place_is_found(made, judged):
    """The graph and the tensor object stay the same, only the numbers change."""
    instrument = judged(made[Text], [own_weight, scale_in_place])
    assert instrument.culprit.name == "scale_in_place"


def test_an_earlier_error_is_not_blamed_on_a_pass(made, judged):
    """Neither passes that keep the wrong value nor passes that rename it are blamed."""
    capture, program = made[Text]
    instrument = judged((capture, optimize(program, [swap_operands])), [*CORRECT, *BEHIND, "IdentityEliminationPass"])

    assert not instrument.close
    assert instrument.culprit is None
    assert instrument.errors[0].diverged > 0
    assert "no pass introduces an error; the program before the passes differs: exported node" in _flat(instrument)


def test_a_second_fault_after_the_first_is_found(made, judged):
    """The second pass makes a value wrong that was correct before."""
    instrument = judged(made[Text], [drop_epsilon, swap_operands])
    assert [row.introduced.op for row in instrument.errors[1:]] == ["LayerNormalization", "Sub"]


def test_a_pass_that_raises_is_a_row(made, judged):
    """It is the culprit if there was none before it."""
    instrument = judged(made[Text], ["InlinePass", fails])

    assert isinstance(instrument.error.__cause__, ValueError)
    assert instrument.culprit.name == "fails"
    assert not instrument.close
    assert instrument.culprit.failure == "it raised ValueError: no such luck"
    assert "fails, pass 2, fails: it raised ValueError: no such luck" in str(instrument)


def test_a_pass_that_breaks_the_graph_is_named(made, judged):
    """A program that can't be run does not pass, and later passes are not blamed."""
    instrument = judged(made[Text], ["InlinePass", break_graph, nothing])

    assert instrument.culprit.name == "break_graph"
    assert not instrument.close
    assert "Subtraction" in instrument.culprit.failure
    assert instrument.errors[-1].report is None and not instrument.errors[-1].failure


# Lower precision


@pytest.mark.parametrize("kind", INPUTS)
def test_float16_is_judged_as_float16(made, judged, kind):
    """From that pass on, values of a lower precision are allowed, as `compare(lower_precision=True)` does."""
    instrument = judged(made[kind], [*default_passes(), "Float16Pass"])

    assert instrument.close
    assert [row.lower_precision for row in instrument.errors[-2:]] == [False, True]
    assert 1e-5 < instrument.errors[-1].error < 1e-2
    assert "from Float16Pass on, values of a lower precision were allowed" in str(instrument)


def test_float16_is_an_error_where_it_is_not_allowed(made, judged):
    """`lower_precision=False` does not allow it."""
    instrument = judged(made[Text], [*default_passes(), "Float16Pass"], lower_precision=False)
    assert instrument.culprit.name == "Float16Pass"


def test_a_wrong_pass_is_named_in_float16(made, judged):
    """Its error is larger than the rounding of float16."""
    instrument = judged(made[Text], [*default_passes(), "Float16Pass", swap_operands])
    assert instrument.culprit.name == "swap_operands"


# How it runs


class Counting:
    """ONNX Runtime that counts its runs."""

    name, stages = "counting", ("exported",)

    def __init__(self):
        self.count, self.engine = 0, get_backend("onnxruntime-cpu")

    def compile(self, program, *, optimize):
        self.count += 1
        return self.engine.compile(program, optimize=optimize)

    def run(self, compiled, inputs, watch=()):
        return self.engine.run(compiled, inputs, watch)


def test_a_program_that_a_pass_does_not_change_is_not_run_again(made, judged):
    """Its row equals the one before, except for the name and the time."""
    backend = Counting()
    instrument = judged(made[Text], [nothing, "FoldConstantPass", "FoldConstantPass", nothing], backend=backend)

    assert backend.count == 2
    assert instrument.errors[1].report is instrument.errors[0].report
    assert [row.error for row in instrument.errors[2:]] == [instrument.errors[2].error] * 3


def test_each_run_begins_anew(made):
    """The rows of the previous run are removed."""
    capture, program = made[Text]
    with PassContext() as context:
        instrument = context.compare_instrument(capture)
        optimize(program, [swap_operands])
        optimize(program, ["InlinePass"])
    assert [row.name for row in instrument.errors] == ["Origin", "InlinePass"]
    assert instrument.culprit is None


def test_the_table_fits_a_terminal(made, judged):
    """It has at most 80 columns, whatever the length of a pass's name, and marks the culprit."""

    def scale(program):
        return scale_weight(program)

    scale.__name__ = "a_pass_that_goes_by_a_very_long_name_" * 3
    instrument = judged(made[Pixels], [*default_passes(), scale])

    lines = str(instrument).splitlines()
    assert max(map(len, lines)) <= 80
    marked = [line for line in lines if line.endswith("<------")]
    assert len(marked) == 1 and marked[0].startswith("a_pass_that_goes_…a_very_long_name_ ")


def test_the_table_is_printed_when_asked(made, judged, capsys):
    """It is printed after the last pass, or after one that fails."""
    judged(made[Text], ["InlinePass"])
    assert capsys.readouterr().out == ""
    instrument = judged(made[Text], ["InlinePass", fails], print_stdout=True)
    assert capsys.readouterr().out == f"{instrument}\n"


def test_an_instrument_without_rows_is_not_close(made):
    """Its text says that no pass ran."""
    instrument = CompareInstrument(made[Text][0])
    assert str(instrument).endswith("no pass ran")
    assert not instrument.close and instrument.culprit is None


def test_rows_are_json(made, judged):
    """JSON has the numbers of the table."""
    instrument = judged(made[Text], [drop_epsilon])

    told = json.loads(instrument.to_json())

    assert told["culprit"] == "drop_epsilon" and told["close"] is False
    assert [one["name"] for one in told["rows"]] == ["Origin", "drop_epsilon"]
    assert told["rows"][1]["error"] == instrument.errors[1].error
    assert told["rows"][1]["introduced"]["value"] == instrument.culprit.introduced.value


def test_the_reference_can_be_the_path_of_a_dump(made, tmp_path):
    """The instrument restores it."""
    model, inputs = Text().eval(), INPUTS[Text]()
    capture_of(model, inputs, dump_file=tmp_path / "dump.onnx")
    with PassContext() as context:
        instrument = context.compare_instrument(tmp_path / "dump.onnx")
        optimize(export(model, (inputs,)), ["InlinePass"])
    assert instrument.close


def test_the_dump_of_another_model_is_refused(made):
    """The error is raised before any pass runs."""
    (capture, _), (_, program) = made[Text], made[Pixels]
    with PassContext() as context:
        context.compare_instrument(capture)
        with pytest.raises(CompareError):
            optimize(program, [fails])


def test_a_backend_that_cannot_run_the_exported_graph_is_refused(made):
    """It would run the model instead of the program after each pass."""
    with pytest.raises(
        CompareError, match="backend 'inductor' cannot run exported graphs, so passes cannot be compared"
    ):
        CompareInstrument(made[Text][0], backend="inductor")


def _flat(instrument):
    return " ".join(str(instrument).split())


# The command line

FACTORIES = """
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
    def forward(self, x):
        return self.linear(x) - x

def good():
    print("hello from the factory")
    torch.manual_seed(0)
    return Scaled().eval(), (torch.ones(2, 3),)

def swap(program):
    node = next(node for node in program.model.graph if node.op_type == "Sub")
    first, second = node.inputs
    node.replace_input_with(0, second)
    node.replace_input_with(1, first)
    return program

def fails(program):
    raise ValueError("no such luck")
"""


@pytest.fixture
def filch(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command line in a folder and returns exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FACTORIES)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["filch", "passes", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


def test_passes_lists_all_there_are(filch):
    """The default passes come first, in their order."""
    code, printed, _ = filch("--list")
    names = [line.strip() for line in printed.splitlines()]
    assert code == 0
    assert names[1 : len(default_passes()) + 1] == default_passes()
    assert {*pass_names()} < {*names}


def test_passes_shows_times_and_draws_graphs(filch, tmp_path):
    """Without --pass, these are the default passes."""
    code, printed, _ = filch("mine.py:good", "--out-dir", "outs", "--view", "text", "-o", "optimized.onnx")

    assert code == 0
    assert len(printed.splitlines()) == 2 * len(default_passes())
    assert "hello" not in printed
    assert (tmp_path / "outs" / f"{len(default_passes())}_FuseOperatorPass.txt").is_file()
    assert (tmp_path / "optimized.onnx").is_file()


def test_passes_names_the_wrong_one(filch):
    """A pass of the user is named by its file, and the exit code is 1."""
    code, printed, _ = filch("mine.py:good", "--pass", "InlinePass", "--pass", "mine.py:swap", "--compare")
    clean, _, _ = filch("mine.py:good", "--compare")

    assert (code, clean) == (1, 0)
    assert "swap, pass 2, introduces the error: exported node" in printed


def test_passes_shows_the_errors_before_a_pass_that_raises(filch):
    """Then it prints the error, and exits with 2."""
    code, printed, complaint = filch("mine.py:good", "--pass", "InlinePass", "--pass", "mine.py:fails", "--compare")

    assert code == 2
    assert "Origin" in printed and "it raised ValueError: no such luck" in printed
    assert complaint.splitlines()[-3] == "filch: pass 'fails', 2 of 2, failed: ValueError: no such luck"


def test_passes_prints_json(filch):
    """Standard output has only JSON."""
    _, printed, _ = filch("mine.py:good", "--pass", "InlinePass", "--compare", "--json")
    assert json.loads(printed)["close"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a model as package.module:factory or path.py:factory, or use --list"),
        (("mine.py:good", "--view", "text"), "--view needs --out-dir, the folder in which the graphs are drawn"),
        (("mine.py:good", "--json"), "--json needs --compare: it prints the error after each pass"),
        (("mine.py:good", "--pass", "InlinPass"), "there is no pass 'InlinPass'; did you mean 'InlinePass'?"),
        (("mine.py:good", "--pass", "mine.py:halve"), "'mine.py' has no function 'halve'"),
        (("mine.py:good", "--compare", "-b", "ort"), "there is no backend 'ort'; there are eager"),
    ],
)
def test_passes_refuses_in_one_sentence(filch, arguments, message):
    """The message is on standard error, and the exit code is 2."""
    code, printed, complaint = filch(*arguments)
    assert (code, printed) == (2, "")
    assert complaint.splitlines()[-1].startswith(f"filch: {message}")
