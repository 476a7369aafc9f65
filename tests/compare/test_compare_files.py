"""Dumps and programs in either order, exports that a backend can't run, and ports that are mapped by hand."""

import contextlib
import shlex

import onnx
import pytest
import torch
from torch import nn

from filch.compare import (
    Checks,
    CompareError,
    DumpDiff,
    MappedValue,
    Report,
    ValueMap,
    align,
    compare,
    compare_files,
    load_report,
    map_to_export,
)
from filch.compare._compare_export import compare_with_fallback
from filch.compare.fleet._cell import CellSpec
from filch.compare.fleet._here import run_here
from filch.compare.layouts._layout import Layout
from filch.compare.models._subject import Subject
from filch.compare.results._cells import OPTIMIZED_NOTE
from filch.compare.testing._artifacts import ArtifactStore
from filch.export import BackendError, Program, export
from filch.steal import DumpError, steal_forward
from support.models.port import Ported, port
from support.models.small import capture_of
from support.processes.commands import run
from support.thorough import slow


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

    assert align(*programs).next_command == load_report("report.json").next_command
    assert align(*programs[:1] * 2).next_command is None

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


@pytest.fixture(scope="module")
def mapping():
    a, b, args = port()
    return ValueMap.of(align(a, b, args))


@pytest.fixture(scope="module")
def capture():
    """Return a capture of two calls of the original."""
    model, _, (tokens,) = port()
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(tokens)
        model(tokens.flip(1))
    return capture


def program(bug=""):
    model, args = port({1: bug} if bug else {})[1:]
    assert isinstance(model, Ported)
    return export(model, args)


@slow
def test_a_right_port_is_close(capture, mapping):
    """Its module outputs are judged in each call, joined ones too, and other values are not."""
    report = compare(capture, program(), mapping=mapping, stages=("exported",))
    assert report.close, report
    assert report.calls == (2, 2)
    judged = [row for row in report.rows if row.judged and row.kind != "input"]
    modules = {f"blocks.{index}.{name}" for index in range(3) for name in ("ln1", "qkv", "proj", "ln2")}
    assert modules < {row.module for row in judged}
    assert len({row.value for row in judged}) < len({row.value for row in report.rows}) / 2
    assert report.notes[0] == "18 values of modules have a reference by the mapping"


@slow
@pytest.mark.parametrize("fault", [("epsilon", "blocks.1.ln1"), ("gelu", "blocks.1")])
def test_a_bug_of_the_port_is_named(capture, mapping, tmp_path, capsys, fault):
    """Although the program does what the port does; on the command line, too."""
    bug, module = fault
    wrong = program(bug)
    first = compare(capture, wrong, mapping=mapping).first_divergence
    assert first is not None
    assert first.module == module
    model, _, args = port()
    capture_of(model, *args, submodules=True, dump_file=tmp_path / "a.onnx")
    wrong.save(tmp_path / "b.onnx")
    mapping.save(tmp_path / "map.toml")
    files = [str(tmp_path / name) for name in ("a.onnx", "b.onnx")]
    assert run("compare", *files, "--mapping", str(tmp_path / "map.toml")) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "by a mapping" in output
    assert module in output
    assert "--blame" not in output


def test_a_value_of_which_a_part_is_missing_is_not_judged(capture, mapping):
    """Queries alone don't tell what queries, keys and values are together."""
    values = {name: row for name, row in mapping.values.items() if ".key" not in name}
    report = compare(capture, program("scale"), mapping=ValueMap(values), stages=("exported",))
    assert "blocks.0.qkv" not in {row.module for row in report.rows if row.judged}
    assert not report.close


def test_what_does_not_fit_is_refused(capture, mapping):
    """A module that is not there, a part that is not there, and a program without modules."""
    exported = program()
    with pytest.raises(CompareError, match=r"'blocks.1.ln', which no module of the program returned; did you mean"):
        compare(capture, exported, mapping=ValueMap({"norm": MappedValue("blocks.1.ln")}))
    layout = Layout.of(24, [(14 * 24, 1)])
    with pytest.raises(CompareError, match=r"'norm', f32\[2, 7, 24\], is in 'final', .*, which has no such part"):
        compare(capture, exported, mapping=ValueMap({"norm": MappedValue("final", layout)}))
    with pytest.raises(CompareError, match="does not say what they return"):
        compare(capture, Program(exported.model), mapping=mapping)
