"""Test `bisect` with planted faults in optimizers, passes, lowered nodes and settings, and without any fault."""

import json
import math
import os
import sys
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import nn

from faults.nodes.optimizers import FaultyOptimizers, faulty
from filch.compare import CompareError, bisect
from filch.compare.bisection._bisect import search
from filch.compare.bisection._criterion import Criterion
from filch.compare.common._delta_debugging import minimize, minimize_by_removal
from filch.compare.metrics._limits import Limits
from filch.compare.results._bisection import BisectReport, Step
from filch.compare.results._precision import OutputDifferences
from filch.export import BackendError, Graph, export, fingerprint
from filch.export.backends import Switch, get_backend
from filch.export.backends.inductor._options import InductorOptions
from filch.export.backends.inductor._switches import switches_of as inductor_switches
from filch.export.backends.inductor._switches import without as inductor_without
from filch.export.backends.onnxruntime._options import CUDA, OrtOptions
from filch.export.backends.onnxruntime._switches import switches_of, without
from support.models.small import capture_of, recorded
from support.processes import commands
from support.thorough import slow


class Small(nn.Module):
    """A model in which ONNX Runtime applies six fusions, one after the other."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.first(x)
        hidden = self.norm(hidden * torch.sigmoid(1.702 * hidden) + x)
        scores = (hidden @ hidden.transpose(-1, -2)) / 2.0
        return self.last(torch.softmax(scores, -1) @ hidden)


@dataclass(frozen=True)
class Counting(FaultyOptimizers):
    """A faulty ONNX Runtime that records what was disabled in each compilation."""

    disabled: list[list[str]] = field(default_factory=list, compare=False)

    def compile_without(self, program, off):
        self.disabled.append([one.name for one in off])
        return super().compile_without(program, off)


def made(dump_file=None):
    torch.manual_seed(0)
    model, given = Small().eval(), torch.randn(2, 4, 8)
    capture = capture_of(model, given, submodules=True, dump_file=dump_file)
    return model, given, capture


@pytest.fixture(scope="module")
def small():
    model, given, capture = made()
    return capture, export(model, (given,))


@pytest.fixture(scope="module")
def found(small):
    return bisect(*small, backend=faulty("QuickGeluFusion", program=small[1]))


@pytest.fixture
def files(small, tmp_path):
    made(tmp_path / "ref.onnx")
    small[1].save(tmp_path / "model.onnx")
    return [str(tmp_path / "ref.onnx"), str(tmp_path / "model.onnx")]


def names(report):
    return [culprit.name for culprit in report.culprits]


def test_delta_debugging_finds_a_minimal_set_in_logarithmic_time():
    """One of n takes at most 2 log2(n) questions, and half of that if the first guess is the middle."""
    for count in (1, 2, 3, 7, 22, 64, 65):
        for guess, most in ((1, 2 * math.ceil(math.log2(count)) + 2), (count // 2 + 1, math.log2(count) + 3)):
            for culprit in range(count):
                asked = set()
                enough = lambda some: asked.add(tuple(some)) or culprit in some  # noqa: B023, E731  called at once
                assert minimize(range(count), enough, guess=guess) == [culprit]
                assert len(asked - {(), tuple(range(count))}) <= most
    assert minimize(range(40), lambda some: {3, 17, 38} <= {*some}) == [3, 17, 38]
    assert minimize("abcd", lambda some: len(some) > 2) == ["a", "b", "c"]
    assert minimize_by_removal(range(40), lambda some: {3, 17, 31} <= {*some}) == [3, 17, 31]
    assert minimize_by_removal([1, 2], lambda _: False) == [1, 2]


@pytest.mark.parametrize("name", ["ConstantFolding", "MatmulTransposeFusion"])
def test_a_wrong_optimizer_is_the_only_culprit(small, name):
    """It is found in a logarithmic number of runs."""
    report = bisect(*small, backend=faulty(name, program=small[1]))
    assert names(report) == [name]
    assert report.runs <= 2 * math.log2(len(report.candidates)) + 5


def test_the_report_has_the_evidence(small, found):
    """Each step has what was disabled and its outcome, and the culprit has its effect on the graph."""
    assert not found.close and not found.before.passes and found.after.passes and found.best.passes
    assert found.steps[0].off == () and found.steps[0].outcome == found.before
    assert found.steps[-1].outcome == found.after and found.steps[-1].fingerprint != found.steps[0].fingerprint
    (culprit,) = found.culprits
    assert (culprit.kind, culprit.name, culprit.without) == ("graph transformer", "QuickGeluFusion", found.before)
    assert (culprit.appears, culprit.disappears) == (
        {"com.microsoft::QuickGelu": 1},
        {"Mul": 1, "Sigmoid": 1},
    )  # the fault is a Mul
    sound = get_backend("onnxruntime-cpu", disabled_optimizers=culprit.name).compile(small[1], optimize=True)
    assert culprit.nodes[1] == len(sound.graph.nodes)


def test_the_report_fits_a_terminal(found):
    """The text has at most 80 columns and ends with the culprit; JSON has all of the report."""
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "graph transformer QuickGeluFusion: adds 1 QuickGelu; removes 1 Mul, 1 Sigmoid" in " ".join(text.split())
    held = json.loads(found.to_json())
    assert (held["close"], held["runs"], len(held["steps"])) == (False, found.runs, found.runs)
    assert held["culprits"][0]["name"] == "QuickGeluFusion"


def test_two_faults_at_once_are_both_culprits(small):
    """With either of them enabled, the error reappears."""
    both = ["SkipLayerNormFusion", "QuickGeluFusion"]
    report = bisect(*small, backend=faulty(*both, program=small[1]))
    assert names(report) == both
    assert report.after.passes and not any(culprit.without.passes for culprit in report.culprits)


def test_a_clean_run_has_nothing_to_blame(files, capsys):
    """There is one run, and the exit code is 0."""
    assert commands.run("bisect", *files, "--json") == 0
    held = json.loads(capsys.readouterr().out)
    assert (held["close"], held["runs"], held["culprits"]) == (True, 1, [])


def test_nothing_helps_where_the_program_itself_is_wrong(small, files, capsys, tmp_path):
    """A weight was changed in the file: the report has no culprit, and the exit code is 1."""
    program = replace(small[1], model=small[1].model.clone())
    weight = program.model.graph.initializers["last.weight"]
    weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.1))
    program.save(tmp_path / "model.onnx")
    assert commands.run("bisect", *files, "-o", str(tmp_path / "found.json")) == 1
    said = capsys.readouterr().out
    assert "no culprit among the candidates: error" in said and "--blame" not in said
    held = json.loads((tmp_path / "found.json").read_text())
    assert held["culprits"] == [] and not held["best"]["passes"]
    # The last step also disables transformations that only changed the graph when others were disabled.
    assert held["steps"][-1]["off"] == held["candidates"]


def test_a_name_without_effect_is_an_error(small):
    """ONNX Runtime ignores unknown names, and those of optimizers that change nothing."""
    with pytest.raises(CompareError, match=r"disabling 'QuickGeluFussion' has no effect.*mean 'QuickGeluFusion'\?"):
        bisect(*small, only=["QuickGeluFussion"])
    with pytest.raises(CompareError, match=r"disabling 'NchwcTransformer' has no effect: no transformation of that"):
        bisect(*small, only=["NchwcTransformer"])
    with pytest.raises(BackendError, match="has no optimizer 'QuickGeluFussion' and would ignore it"):
        get_backend("onnxruntime-cpu").compile_without(small[1], [Switch("graph transformer", "QuickGeluFussion")])


def test_a_culprit_that_does_not_change_the_graph_is_refused(small):
    """If the error disappears with the same graph, the results vary from run to run."""

    @dataclass(frozen=True)
    class SameGraph(FaultyOptimizers):
        def compile_without(self, program, off):
            return replace(super().compile_without(program, off), fingerprint="always this")

    same_graph = SameGraph(**vars(faulty("QuickGeluFusion", program=small[1])))
    with pytest.raises(CompareError, match="'QuickGeluFusion' has no effect on the graph, but the error disappears"):
        bisect(*small, backend=same_graph)


def test_only_restricts_the_candidates(small):
    """A candidate that is not at fault is no culprit, and nothing else is disabled."""
    report = bisect(*small, backend=faulty("QuickGeluFusion", program=small[1]), only=["MatMulAddFusion"])
    assert (names(report), report.runs, report.after) == ([], 2, None)


def test_a_bisection_resumes_from_its_journal(small, found, tmp_path):
    """Complete lines are not run again, a line that was cut short is, and the result is the same."""
    journal = tmp_path / "journal"
    fault = faulty("QuickGeluFusion", program=small[1])
    bisect(*small, backend=fault, journal=journal)
    whole = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(whole[:4]) + whole[4][:30])
    counting = Counting(**vars(fault))
    report = bisect(*small, backend=counting, journal=journal)
    assert report.culprits == found.culprits and report.steps == found.steps
    assert len(counting.disabled) == report.runs - 3
    assert f"3 of {report.runs} runs are from the journal" in report.notes
    assert journal.read_text().splitlines(keepends=True) == whole


def test_a_journal_of_another_bisection_is_refused(small, tmp_path):
    """The message names the property that differs."""
    journal = tmp_path / "journal"
    bisect(*small, journal=journal)
    with pytest.raises(CompareError, match="is of another reference or tolerance: remove it, or give another file"):
        bisect(*small, journal=journal, tolerance=1e-9)
    with pytest.raises(CompareError, match="is of another backend or options: "):
        bisect(*small, journal=journal, options={"level": "basic"})
    journal.write_text(journal.read_text() + '{"off": 1}\n')
    with pytest.raises(CompareError, match="is damaged in line 3: remove it"):
        bisect(*small, journal=journal)
    for text in ("a letter\n", "a line without an end", "a line\nand the beginning of one"):
        journal.write_text(text)
        with pytest.raises(CompareError, match="is not a journal of a bisection"):
            bisect(*small, journal=journal)
        assert journal.read_text() == text


def test_a_value_that_the_outputs_hide_is_judged(small):
    """Its reference is computed from the captured tensors; a value that was fused away can't be judged."""
    value = next(node.outputs[0] for node in small[1].graph.nodes if node.op == "Softmax")
    fault = faulty("MatMulScaleFusion", program=small[1])
    report = bisect(*small, backend=fault, value=value)
    assert names(report) == ["MatMulScaleFusion"] and report.value == value
    inside = next(node.outputs[0] for node in small[1].graph.nodes if node.op == "Sigmoid")
    with pytest.raises(CompareError, match=f"{inside!r} can't be judged on onnxruntime-cpu"):
        bisect(*small, backend=fault, value=inside)
    with pytest.raises(CompareError, match="no node of the program computes a value 'nothing'"):
        bisect(*small, value="nothing")


def test_a_pass_is_blamed(small):
    """The culprit is a pass of the user among correct ones; a pass that changes nothing is no candidate."""

    def halve(program):
        for value in program.model.graph.initializers.values():
            if value.name == "first.bias":
                value.const_value = ir.tensor(value.const_value.numpy() / 2)
        return program

    report = bisect(*small, passes=["FoldConstantPass", halve, "FoldConstantPass", "NameFixPass"])
    assert [(culprit.kind, culprit.name) for culprit in report.culprits] == [("pass", "halve")]
    assert "FoldConstantPass (2)" not in [one.name for one in report.candidates]


def test_the_node_that_overflows_in_float16_is_blamed():
    """Squares of numbers around 300 overflow in float16."""

    class Square(nn.Module):
        def forward(self, x):
            large = torch.relu(x) * 300.0
            return torch.tanh(large * large * 1e-5)

    model, args = Square(), (torch.linspace(-2, 2, 16),)
    capture, program = recorded(model, *args)
    report = bisect(capture, program, to="float16")
    (square,) = [node for node in program.graph.nodes if len({*node.inputs}) < len(node.inputs)]
    needed = {square.name, *(node.name for node in program.graph.consumers[square.outputs[0]])}
    assert {*names(report)} == needed and {one.kind for one in report.culprits} == {"node in lower precision"}


@dataclass
class _Compiler:
    """Is wrong with one step, wrong without another one, and fails without a third one."""

    runs: int = 0
    switches = (Switch("pass", "needed"), *(Switch("pass", f"pass {k}") for k in range(6)), Switch("form", "vectors"))

    def without(self, off):
        self.runs += 1
        names = {switch.name for switch in off}
        left = tuple(switch for switch in self.switches if switch not in off)
        if "needed" in names:
            return Step(tuple(off), OutputDifferences.failed("nothing to lower it with"))
        passes = "pass 2" in names and "vectors" not in names
        return Step(tuple(off), OutputDifferences(passes, 0.0 if passes else 1.0, 0.0), str(left), {}, left)


def test_a_step_without_which_there_is_another_error_hides_no_culprit():
    """Kinds are tried by themselves, without the steps that the compiler needs."""
    compiler = _Compiler()
    before = compiler.without(())
    report = BisectReport("", "", "", None, before.outcome, None, None, (), before.switches, ())
    assert names(search(report, compiler, grow=True)) == ["pass 2"]
    assert compiler.runs < 40


@slow
def test_settings_of_inductor_are_blamed():
    """Inductor has a setting that makes relu wrong, for tests."""
    model, args = nn.ReLU(), (torch.linspace(-1, 1, 16),)
    capture = capture_of(model, *args)
    wrong = "cpp.inject_relu_bug_TESTING_ONLY"
    options = {"config": {wrong: "accuracy"}}
    report = bisect(capture, export(model, args), backend="inductor", options=options, only=[f"config.{wrong}"])
    assert names(report) == [f"config.{wrong}"]
    assert {"pattern_matcher", "max_fusion_size"} <= {one.name for one in report.steps[0].switches}


def test_the_switches_of_inductor_are_its_enabled_settings():
    """They are the settings that are on by default, and those that the user has set."""
    options = InductorOptions(use_fp16=True, config={"epilogue_fusion": False})
    known = {"epilogue_fusion": True, "pattern_matcher": True, "emulate_precision_casts": True}
    switches = inductor_switches(options, options.settings(), known)
    assert [one.name for one in switches] == ["pattern_matcher", "use_fp16", "config.epilogue_fusion"]
    assert inductor_without(options, switches) == InductorOptions(config={"pattern_matcher": False})
    every = inductor_switches(InductorOptions(), {}, dict.fromkeys(("layout_optimization", "fallback_by_default")))
    assert [one.name for one in every] == ["fallback_by_default", "layout_optimization"], "the last one is blamed first"
    with pytest.raises(BackendError, match="Inductor has no setting 'no_such_setting' to turn off"):
        inductor_without(options, [Switch("setting", "no_such_setting")])
    steps = inductor_switches(InductorOptions(), {}, {}, {"lowerings.tanh": "lowering"})
    assert inductor_without(options, steps).without == ("lowerings.tanh",)


def test_the_program_runs_in_other_interpreters(small):
    """The same version gives the same outcome; an interpreter that does not exist is a failed outcome."""
    whole = bisect(*small, interpreters=[sys.executable, "/no/python"])
    here, nowhere = whole.versions
    assert here.outcome == whole.before and here.version == ort.__version__
    assert not nowhere.outcome.passes and "can't run the interpreter '/no/python'" in str(whole)
    with pytest.raises(CompareError, match="backend 'reference' can't run in another interpreter"):
        bisect(*small, backend="reference", interpreters=[sys.executable])


def test_the_switches_of_cuda_are_its_settings():
    """TF32, the convolution search and others each have an option that disables them; this needs no device."""
    options = OrtOptions(tunable=True, session_config={"session.x": "1"})
    settings = {one.name: one for one in switches_of((), options, CUDA)}
    assert list(settings) == ["tf32", "search_space", "tunable", "session_config.session.x"]
    assert not any(one.changes_graph for one in settings.values())
    left = without(options, settings.values())
    assert (left.tf32, left.search_space, left.tunable, left.session_config) == (False, 0, False, {})
    assert not switches_of((), left, CUDA)
    with pytest.raises(BackendError, match=r"have no setting 'provider_options\.y'"):
        without(options, [Switch("setting", "provider_options.y")])


def test_rules_are_tried_where_their_transformer_changed_the_graph():
    """The transformer itself is a candidate if it still changes the graph with all rules disabled."""
    whole = switches_of(["Level1_RuleBasedTransformer", "ConstantFolding"], OrtOptions(), "CPUExecutionProvider")
    rules = [one.name for one in whole if one.kind == "rewrite rule"]
    assert {"EliminateIdentity", "ConvMulFusion"} <= {*rules} and whole[-1].name == "ConstantFolding"
    left = switches_of(["Level1_RuleBasedTransformer"], without(OrtOptions(), whole), "CPUExecutionProvider")
    assert left == (Switch("graph transformer", "Level1_RuleBasedTransformer"),)


def test_standard_error_is_restored_after_a_compilation(small, capfd):
    """ONNX Runtime's log is read instead of printed; later output is printed."""
    made = get_backend("onnxruntime-cpu").compile_without(small[1], ())
    os.write(2, b"here again\n")
    assert capfd.readouterr().err == "here again\n"
    assert "QuickGeluFusion" in [one.name for one in made.switches]


def test_a_fingerprint_depends_on_numbers_and_nodes(small):
    """A copy of a model has the same fingerprint, one with another weight has not."""
    model = small[1].model.clone()
    assert fingerprint(model) == fingerprint(small[1].model)
    weight = model.graph.initializers["last.weight"]
    weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.1))
    assert fingerprint(model) != fingerprint(small[1].model)


def test_expanded_tensors_are_hashed_by_their_storage():
    """A few bytes can be expanded to terabytes."""

    def identity(tensor):
        return Criterion([{"x": tensor}], frozenset(), [], Limits(Graph("g", (), (), (), (), {}), None)).identity()

    ones = torch.ones(1, 4)
    told = [identity(tensor.expand(size, 4)) for tensor in (ones, 2 * ones) for size in (2**40, 2**41)]
    assert len({*told}) == 4
    assert told[0] == identity(ones.clone().expand(2**40, 4))
    assert identity(torch.ones(()).expand(1, 4)) != identity(torch.zeros(()).expand(1, 4))
    assert identity(torch.ones(1, 1).expand(1, 1)) != identity(torch.zeros(()).expand(1, 1))


def test_a_program_is_a_reference_like_a_dump(files, small, tmp_path):
    """A wrong optimizer is found by the numbers of another program, on drawn or given inputs; a right one is not."""
    other = str(tmp_path / "other.onnx")
    small[1].save(other)
    backend = faulty("QuickGeluFusion", program=small[1])
    inputs = {"x": np.random.default_rng(1).standard_normal((2, 4, 8), dtype=np.float32)}

    given = bisect(small[1], files[1], backend=backend, inputs=inputs)
    drawn = bisect(other, files[1], backend=backend, seed=3, only=["QuickGeluFusion"])
    assert names(given) == names(drawn) == ["QuickGeluFusion"] and given.before != drawn.before
    assert drawn.reference == other
    assert commands.run("bisect", other, files[1], "--seed", "1") == 0
    with pytest.raises(CompareError, match="only for two programs: a dump has the inputs"):
        bisect(*files, seed=1)
