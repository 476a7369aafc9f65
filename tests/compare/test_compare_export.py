"""A program that a backend can't run as it was exported is compared with the exporter's optimizations."""

import contextlib

import pytest
import torch
from torch import nn

from filch.compare import Checks, compare, map_to_export
from filch.compare._compare_export import compare_with_fallback
from filch.compare.fleet._cell import CellSpec
from filch.compare.fleet._here import run_here
from filch.compare.models._subject import Subject
from filch.compare.results._cells import OPTIMIZED_NOTE
from filch.compare.testing._artifacts import ArtifactStore
from filch.export import BackendError
from support.processes.commands import run

FACTORY = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(2, 3, 2, bias=False), nn.ReLU()).eval()
    return model, (torch.randn(2, 2, 3, 3, 3),), {}, ({0: torch.export.Dim("batch", min=1, max=8)},)
"""


@pytest.fixture(scope="module")
def subject():
    """Return a convolution without bias, for which torch exports a computed bias that ONNX Runtime refuses."""
    names: dict = {}
    exec(FACTORY, names)  # noqa: S102  the text above
    return Subject.of(*names["model"]())


@pytest.fixture(scope="module")
def exported(subject):
    """Return the program with computed biases."""
    program = subject.export()
    with contextlib.suppress(BackendError):
        compare(subject.steal(), program)
        pytest.skip(f"torch {torch.__version__} exports a program that runs as it is")
    return program


@pytest.fixture
def factory(tmp_path, monkeypatch, exported):
    """Return the name of a factory; exporting its model returns `exported`."""
    (tmp_path / "convolution.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Subject, "export", lambda _, **options: exported)
    return "convolution.py:model"


def test_a_file_of_another_tool_is_mapped_to_the_optimized_program(subject, exported):
    """The values of the file are found in the program that can be run."""
    foreign = torch.onnx.export(subject.model, subject.args, verbose=False).model_proto
    capture = subject.steal()
    report = compare(capture, map_to_export(foreign, exported, capture))
    assert report.close and all(row.judged for row in report.rows)
    assert {row.evidence for row in report.rows if row.kind == "node"} == {"module"}


def test_the_optimized_program_is_judged_and_a_note_says_why(subject, exported):
    """The exported program can't be run."""
    capture = subject.steal()
    with pytest.raises(BackendError, match="bias must be a 1D tensor"):
        compare(capture, exported)
    report, program = compare_with_fallback(capture, exported)
    assert report.close
    assert program is not exported
    assert report.notes[0].startswith(OPTIMIZED_NOTE)
    assert "bias must be a 1D tensor" in report.notes[0]
    assert "bias must be a 1D tensor" in " ".join(report.table(width=1000).split())


def test_a_wrong_weight_is_found_in_the_optimized_program(subject, exported):
    """Optimizing the program does not hide a fault."""
    other = Subject.of(nn.Sequential(nn.Conv3d(2, 3, 2, bias=False), nn.ReLU()).eval(), subject.args, {})
    report, _ = compare_with_fallback(other.steal(), exported)
    assert not report.close
    assert report.first_divergence is not None


def test_a_program_that_runs_is_compared_as_it_is(subject, exported):
    """It is not optimized."""
    report, program = compare_with_fallback(subject.steal(), exported, backend="eager")
    assert program is exported
    assert not [note for note in report.notes if note.startswith(OPTIMIZED_NOTE)]


def test_the_command_check_compares_the_optimized_program(factory, capsys):
    """It exits with 0, and prints why the program was optimized."""
    assert run("check", factory) == 0
    assert "bias must be a 1D tensor" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("factory")
def test_the_fixture_optimizes_only_programs_that_it_exports(subject, exported, tmp_path):
    """A program that the user passes has to run as it is."""
    checks = Checks(ArtifactStore(tmp_path, None, lambda: tmp_path / "scratch", lambda *_: None))
    (report,) = checks.check(subject.model, subject.args)
    assert report.notes[0].startswith(OPTIMIZED_NOTE)
    with pytest.raises(AssertionError, match="bias must be a 1D tensor"):
        checks.check(subject.model, subject.args, program=exported)


@pytest.mark.parametrize("kind", ["matrix", "sweep"])
def test_matrix_and_sweep_compare_the_optimized_program(factory, kind):
    """The cell is close, and its detail says why the program was optimized."""
    sizes = {} if kind == "matrix" else {"batch": 3}
    (cell,) = run_here([CellSpec(factory, "", "onnxruntime-cpu", sizes=sizes, export_sizes=sizes)])
    assert cell.status == "close"
    assert "bias must be a 1D tensor" in cell.detail
