"""Two files are compared by what they are: dumps or programs, in either order."""

import shlex

import onnx
import pytest
import torch
from torch import nn

from filch.compare import CompareError, DumpDiff, Report, compare_files, load_report
from filch.export import export
from filch.steal import DumpError
from support.models.small import capture_of
from support.processes.commands import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a dump, the program, and a program with another epsilon."""
    where = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)).eval(), torch.randn(2, 4)
    capture_of(model, x, submodules=True, dump_file=where / "ref.onnx")
    export(model, (x,)).save(where / "model.onnx")
    changed = onnx.load(where / "model.onnx")
    (norm,) = (node for node in changed.graph.node if node.op_type == "LayerNormalization")
    next(item for item in norm.attribute if item.name == "epsilon").f = 1e-2
    onnx.save(changed, where / "changed.onnx")
    return where


@pytest.mark.parametrize(("first", "second"), [("ref.onnx", "changed.onnx"), ("changed.onnx", "ref.onnx")])
def test_a_dump_and_a_program_are_compared_in_either_order(folder, first, second):
    """The dump is the reference."""
    report = compare_files(folder / first, folder / second, tolerance=None)
    assert isinstance(report, Report) and report.reference.endswith("ref.onnx")
    assert report.first_divergence.op == "LayerNormalization"


def test_of_two_programs_the_first_is_the_reference(folder):
    """The report names both files."""
    report = compare_files(folder / "model.onnx", folder / "changed.onnx", seed=1)
    assert isinstance(report, Report) and not report.close
    assert report.reference.endswith("model.onnx") and report.program.endswith("changed.onnx")


def test_two_dumps_are_compared_by_their_keys(folder):
    """Nothing runs."""
    result = compare_files(folder / "ref.onnx", folder / "ref.onnx")
    assert isinstance(result, DumpDiff) and result.close


def test_a_repro_is_written_of_two_programs(folder, tmp_path):
    """The node that differs is extracted, as from a dump."""
    report = compare_files(folder / "model.onnx", folder / "changed.onnx", blame=tmp_path / "why")
    assert report.repro and (tmp_path / "why" / "repro.py").is_file()


def test_a_report_of_two_programs_names_the_command_that_writes_a_repro(folder, tmp_path, monkeypatch, capsys):
    """The report has no inputs for `filch repro`; what it says to run instead runs, and so does the next command."""
    monkeypatch.chdir(tmp_path)
    programs = [str(folder / name) for name in ("model.onnx", "changed.onnx")]
    assert run("compare", *programs, "-o", "report.json", "-q") == 1
    assert load_report("report.json").next_command.command == shlex.join(
        ["filch", "compare", *programs, "--blame", "blame"]
    )

    assert run("repro", "report.json", "-o", "why") == 2
    message, command = capsys.readouterr().err.rstrip().rsplit("\n", 1)

    assert "is a program, and the report does not contain the inputs of both" in message
    assert run(*shlex.split(command)[1:]) == 1
    assert (tmp_path / "why" / "repro.py").is_file()


@pytest.mark.parametrize(
    ("second", "settings", "message"),
    [
        ("model.onnx", {"seed": 1}, "seed is only for two programs"),
        ("ref.onnx", {"backend": "reference"}, "backend is only for programs"),
        ("ref.onnx", {"blame": "why"}, "blame is only for programs"),
    ],
)
def test_settings_of_no_use_are_refused(folder, second, settings, message):
    """The message names the setting."""
    with pytest.raises(CompareError, match=message):
        compare_files(folder / "ref.onnx", folder / second, **settings)


def test_a_damaged_dump_is_not_taken_for_a_program(folder, tmp_path):
    """The error is that of the dump."""
    contents = (folder / "ref.onnx").read_bytes()
    (tmp_path / "bad.onnx").write_bytes(contents[: len(contents) // 2])
    with pytest.raises(DumpError):
        compare_files(tmp_path / "bad.onnx", folder / "model.onnx")
