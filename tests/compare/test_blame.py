"""Faults, alone and two at once, are blamed on their nodes, and failures on the transformation that causes them."""

import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from random import Random

import pytest
import torch
from torch import nn

from faults.nodes.blaming import COMPILED, EXPORTED, INSIDE, INT8, MISSED, NODE, Subject, Verdict, blamed, judge, wheres
from faults.nodes.kinds import KINDS, LEAST, NAN, NOISE, QDQ, STALE
from filch.compare import blame, compare
from filch.compare.bisection._bisect import bisect
from filch.export import BackendError
from filch.export.backends import CompiledVariant, NotCompiledError, Switch, get_backend
from support.models.small import module_of, recorded
from support.thorough import slow

ALLOWED = (Verdict(NODE, besides=0), Verdict(INSIDE, besides=0))
# What needs `truth`, `repeats`, `introduced` and `unstable` of `compare` is marked in blaming.py.


class Block(nn.Module):
    """Attention with a causal mask and a padding mask, and a perceptron, in a few dozen nodes."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.keys, self.values, self.wide, self.narrow = (
            nn.Linear(*size) for size in ((16, 16), (16, 16), (16, 24), (24, 16))
        )

    def forward(self, x, kept):
        hidden = self.before(x)
        places = torch.arange(x.shape[1])
        mask = (places[None] <= places[:, None])[None] & kept[:, None, :].bool()
        scores = (hidden @ self.keys(hidden).transpose(1, 2)).masked_fill(~mask, torch.finfo(x.dtype).min)
        x = x + torch.softmax(scores / 4, -1) @ self.values(hidden)
        return torch.sigmoid(x + self.narrow(nn.functional.gelu(self.wide(self.after(x)))))


@cache
def subject():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        kept = torch.ones(2, 6, dtype=torch.int64)
        kept[1, 4:] = 0
        return Subject("block", Block().eval(), (torch.randn(2, 6, 16), kept), {})


def draw(kind, where, *, seed=0, beside=()):
    fault = subject().faults[where].plant(kind, Random(seed), beside=beside)  # noqa: S311  no secret
    assert fault is not None
    return fault


@slow
@pytest.mark.parametrize("where", [EXPORTED, COMPILED, INT8])
def test_nothing_is_blamed_in_a_clean_run(where):
    """Neither float rounding nor the rounding of 8-bit integers is reported, in two calls with repeats."""
    assert blamed(subject().compare(where)) == []


@pytest.mark.parametrize(("kind", "where"), [(kind, where) for kind in KINDS for where in dict.fromkeys(wheres(kind))])
def test_a_fault_is_blamed_on_the_node_that_it_is_in_and_on_no_other(kind, where):
    """Each of the ten kinds is planted in the exported graph and in the graph that ONNX Runtime compiles."""
    fault = draw(kind, where)
    report = subject().compare(where, [fault])
    # Quantization makes integers, which are judged after dequantization.
    assert judge(report, [fault]) in ALLOWED, f"{fault.text}\n{blamed(report)}"


@pytest.mark.parametrize(
    ("kinds", "where"),
    [
        (("wrong epsilon", "dropped bias"), EXPORTED),
        ((NAN, "lower precision"), EXPORTED),
        ((NOISE, STALE), EXPORTED),
        (("approximated activation", "dropped bias"), COMPILED),
        ((QDQ, QDQ), INT8),
    ],
)
def test_of_two_faults_at_once_each_is_blamed_on_its_node(kinds, where):
    """The second fault is distinguished from the error that its node inherits from the first."""
    faults = [draw(kinds[0], where)]
    faults.append(draw(kinds[1], where, beside=faults))
    report = subject().compare(where, faults)
    assert judge(report, faults) in ALLOWED, f"{[fault.text for fault in faults]}\n{blamed(report)}"


def test_the_evaluation_of_blame_finds_missing_and_wrong_names():
    """It counts a fault as missed if the run is clean or another fault is named."""
    one, other = draw("dropped bias", EXPORTED), draw("wrong epsilon", EXPORTED)
    assert judge(subject().compare(EXPORTED), [one]) == Verdict(MISSED, besides=0)
    report = subject().compare(EXPORTED, [one])
    assert judge(report, [other]) == Verdict(MISSED, besides=1)
    assert judge(report, [one, other]).at == MISSED


@pytest.mark.parametrize("kind", KINDS)
def test_faults_are_larger_than_rounding_and_found_again_by_their_seed(kind):
    """The same seed plants the same fault."""
    where = wheres(kind)[0]
    faults = [draw(kind, where, seed=seed) for seed in (0, 0, 1)]
    assert all(fault.off != fault.off if kind == NAN else fault.off >= LEAST for fault in faults)
    assert faults[0].text == faults[1].text


RUNTIME = get_backend("onnxruntime-cpu")


def widen(self, x):
    """A norm of one number, spread over 8 columns, which ONNX Runtime 1.31 takes for one of 8 numbers."""
    centered = x - x.mean(-1, keepdim=True)
    return self.scale * (centered / torch.sqrt((centered**2).mean(-1, keepdim=True) + 1e-5)) + self.scale


@dataclass(frozen=True)
class Breaking:
    """Fuses two layers wrongly, unless constants were not folded before; a second fusion does the same as the first."""

    in_compilation: bool
    name: str = "onnxruntime-cpu"
    stages: tuple = ("exported", "compiled")
    off: frozenset = frozenset()
    compiled: dict = field(default_factory=dict)

    def compile(self, program, *, optimize):
        return RUNTIME.compile(program, optimize=False)

    def compile_without(self, program, off):
        names = {switch.name for switch in off}
        fusion = next((name for name in ("FirstFusionL1", "FirstFusionL2") if name not in names), None)
        applied = [name for name in ("Folding", fusion) if name and name not in names]
        switches = tuple(Switch("graph transformer", name) for name in applied)
        broken = fusion is not None and "Folding" not in names
        if broken and self.in_compilation:
            raise NotCompiledError("the graph has a cycle after FirstFusion", switches)
        compiled = RUNTIME.compile(program, optimize=False)
        self.compiled[id(compiled)] = broken, compiled
        return CompiledVariant(compiled, switches, "/".join(applied))

    def run(self, compiled, inputs, watch=()):
        if self.compiled[id(compiled)][0]:
            raise BackendError("Non-zero status code. Name:'x/FirstFusion/' Status Message: shapes differ")
        return RUNTIME.run(compiled, inputs, watch)


@pytest.fixture(scope="module")
def normalized():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 2).eval(), torch.randn(3, 4)
    return recorded(model, x)


@pytest.mark.parametrize("in_compilation", [True, False])
def test_what_the_backend_names_is_the_culprit(normalized, in_compilation):
    """Not what merely prepares the graph for it, though the failure disappears without that, too."""
    report = bisect(*normalized, backend=Breaking(in_compilation))

    assert [culprit.name for culprit in report.culprits] == ["FirstFusionL1", "FirstFusionL2"]
    assert report.after.passes and not report.before.passes
    assert "FirstFusion" in report.before.problem


def test_a_failure_that_no_transformation_causes_is_an_error(normalized):
    """As without anything that could be disabled."""

    class Failing(Breaking):
        def compile_without(self, program, off):
            raise BackendError("the device is gone")

    with pytest.raises(BackendError, match="the device is gone"):
        bisect(*normalized, backend=Failing(in_compilation=True))


def test_an_optimizer_goes_by_its_name_in_messages():
    """ONNX Runtime's messages leave out the level that its option needs."""
    backend = get_backend("onnxruntime-cpu", disabled_optimizers="LayerNormFusion")

    assert {"LayerNormFusionL1", "LayerNormFusionL2"} >= {*backend.options.disabled_optimizers} != set()


@slow
def test_the_report_names_the_culprits_and_the_repro_shows_the_failure(tmp_path):
    """https://github.com/microsoft/onnxruntime/issues/31980."""
    model, x = module_of(widen, scale=nn.Parameter(torch.linspace(0.5, 1.5, 8))).eval(), torch.randn(4, 1)
    capture, program = recorded(model, x)
    report = compare(capture, program)
    if not report.failed:
        pytest.skip("this ONNX Runtime does not break the graph")
    assert "blame" in report.next_command.command

    blamed = blame(report, capture, program, tmp_path / "repro")

    assert any(name.startswith("LayerNormFusion") for name in blamed.culprits)
    assert any(note.startswith("without ") and note.endswith("can run the program") for note in blamed.notes)
    ended = subprocess.run([sys.executable, blamed.repro + "/repro.py"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "AssertionError: the model can't be run" in ended.stderr
