"""A transformation that breaks the graph is found: the backend can't compile or run it, and could without."""

import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from filch.compare import blame, compare
from filch.compare.bisection._bisect import bisect
from filch.export import BackendError, export
from filch.export.backends import CompiledVariant, NotCompiledError, Switch, get_backend
from support.models.small import capture_of, module_of

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
def subject():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 2).eval(), torch.randn(3, 4)
    capture = capture_of(model, x)
    return capture, export(model, (x,))


@pytest.mark.parametrize("in_compilation", [True, False])
def test_what_the_backend_names_is_the_culprit(subject, in_compilation):
    """Not what merely prepares the graph for it, though the failure disappears without that, too."""
    report = bisect(*subject, backend=Breaking(in_compilation))

    assert [culprit.name for culprit in report.culprits] == ["FirstFusionL1", "FirstFusionL2"]
    assert report.after.passes and not report.before.passes
    assert "FirstFusion" in report.before.problem


def test_a_failure_that_no_transformation_causes_is_an_error(subject):
    """As without anything that could be disabled."""

    class Failing(Breaking):
        def compile_without(self, program, off):
            raise BackendError("the device is gone")

    with pytest.raises(BackendError, match="the device is gone"):
        bisect(*subject, backend=Failing(in_compilation=True))


def test_an_optimizer_goes_by_its_name_in_messages():
    """ONNX Runtime's messages leave out the level that its option needs."""
    backend = get_backend("onnxruntime-cpu", disabled_optimizers="LayerNormFusion")

    assert {"LayerNormFusionL1", "LayerNormFusionL2"} >= {*backend.options.disabled_optimizers} != set()


def test_the_report_names_the_culprits_and_the_repro_shows_the_failure(tmp_path):
    """https://github.com/microsoft/onnxruntime/issues/31980."""
    model, x = module_of(widen, scale=nn.Parameter(torch.linspace(0.5, 1.5, 8))).eval(), torch.randn(4, 1)
    capture = capture_of(model, x)
    program = export(model, (x,))
    report = compare(capture, program)
    if not report.failed:
        pytest.skip("this ONNX Runtime does not break the graph")
    assert "blame" in report.next_command.command

    blamed = blame(report, capture, program, tmp_path / "repro")

    assert any(name.startswith("LayerNormFusion") for name in blamed.culprits)
    assert any(note.startswith("without ") and note.endswith("can run the program") for note in blamed.notes)
    ended = subprocess.run([sys.executable, blamed.repro + "/repro.py"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "AssertionError: the model can't be run" in ended.stderr
