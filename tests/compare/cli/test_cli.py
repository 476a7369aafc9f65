"""The command line: what it prints, what it writes, its exit codes."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import onnx_ir as ir
import pytest

from support.processes.commands import run
from support.thorough import slow

FACTORIES = """
import torch
from torch import nn

class Branches(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
    def forward(self, x, *, scale=2.0):
        return self.linear(x) * scale

def good():
    torch.manual_seed(0)
    shapes = {"x": {0: torch.export.Dim("n", min=1, max=8)}, "scale": None}
    return Scaled().eval(), (torch.ones(2, 3),), {"scale": 3.0}, shapes

def refused():
    return Branches(), (torch.ones(2),)

def raises():
    raise ValueError("no weights here")

def exits():
    raise SystemExit(0)

def skips():
    import pytest
    pytest.skip("no weights here")

def fails():
    return nn.Linear(3, 3), (torch.ones(2, 4),)

def talks():
    print("hello from the factory")
    return good()

def alone():
    return Scaled()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a folder with a file of factories, whose name shadows one of Filch's packages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "export.py").write_text(FACTORIES)
    return tmp_path


@slow
def test_the_demo_prints_its_tables_and_the_files_it_wrote(folder, capsys):
    """It prints the verdict and a table of modules in at most 80 columns, and the paths of the files."""
    code = run("demo")

    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("CLOSE: ") and "Modules, in the compiled graph:" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("  filch compare ")) <= 80
    assert all(f"  {Path('demo') / name}" in out for name in os.listdir(folder / "demo"))
    assert {"tiny_llm.dump.onnx", "tiny_llm.onnx", "report.json"} <= set(os.listdir(folder / "demo"))


def test_stealing_exporting_and_comparing_from_files(folder, capsys):
    """The factory has keyword arguments and dynamic shapes, and each step is a command of its own."""
    assert run("steal", "export.py:good", "-o", "ref.onnx") == 0
    assert "written: ref.onnx: 4 values" in capsys.readouterr().out
    assert run("export", "export.py:good", "-o", "model.onnx") == 0
    assert "2 module calls, their outputs 2 exact" in capsys.readouterr().out
    assert run("compare", "ref.onnx", "model.onnx") == 0
    assert capsys.readouterr().out.startswith("CLOSE: model.onnx on onnxruntime-cpu, against ref.onnx\n")
    assert run("compare", "ref.onnx", "model.onnx", "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert run("show", "model.onnx") == 0
    assert capsys.readouterr().out.startswith("Graph(x: float32[")


def test_a_difference_ends_with_1_and_names_the_first_node(folder, capsys):
    """Text and JSON both name it."""
    run("steal", "export.py:good", "-o", "ref.onnx", "-q")
    run("export", "export.py:good", "-o", "model.onnx", "-q")
    model = ir.load("model.onnx")
    bias = model.graph.initializers["linear.bias"]
    bias.const_value = ir.tensor(bias.const_value.numpy() + 1, name="linear.bias")
    ir.save(model, "model.onnx")
    capsys.readouterr()

    assert run("compare", "ref.onnx", "model.onnx") == 1
    out = capsys.readouterr().out
    assert "<------" in out
    assert out.startswith("DIFFERENT: ") and "Divergence starts at `node_linear` in `linear`" in " ".join(out.split())
    assert run("compare", "ref.onnx", "model.onnx", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["close"], found["first_divergence"]["module"]) == (False, "linear")
    assert run("compare", "ref.onnx", "model.onnx", "--tolerance", "10") == 0


def test_check_compares_a_model_on_several_backends(folder, capsys):
    """It leaves no files."""
    code = run(
        "check", "export.py:good", "--backend", "onnxruntime-cpu", "--backend", "reference", "--view", "operators"
    )

    out = capsys.readouterr().out
    assert code == 0
    assert out.count("call_module") == 2 and "Linear(in_features=3," in out
    assert out.count("CLOSE: ") == 2
    assert set(os.listdir(folder)) - {"__pycache__"} == {"export.py"}


@pytest.mark.usefixtures("forked_repros")
def test_check_compares_a_file_of_another_tool(folder, capsys):
    """The model is the reference, and the next command runs as it is printed."""
    run("export", "export.py:good", "-o", "model.onnx", "-q")
    plain = ir.load("model.onnx")
    plain.metadata_props.clear()
    ir.save(plain, "plain.onnx")
    plain.graph.initializers["linear.bias"].const_value = ir.tensor([1.0, 2.0, 3.0], name="linear.bias")
    ir.save(plain, "wrong.onnx")
    capsys.readouterr()

    assert run("check", "export.py:good", "--program", "plain.onnx") == 0
    assert capsys.readouterr().out.startswith("CLOSE: plain.onnx on onnxruntime-cpu, against export.py:good\n")
    assert run("check", "export.py:good", "--program", "wrong.onnx") == 1
    out = capsys.readouterr().out
    assert "Divergence starts at `node_" in out and "in `linear`" in " ".join(out.split())
    *_, command = out.splitlines()
    assert command.strip() == "filch check export.py:good --program wrong.onnx --blame blame"
    assert run(*shlex.split(command)[1:], "-o", "report.json") == 1
    assert (folder / "blame" / "repro.py").is_file()


def test_options_reach_the_backend_and_times_are_shown(folder, capsys):
    """An option that is not name=value, or that the backend does not have, is an error."""
    check = ("check", "export.py:good")

    assert run(*check, "--option", "level=basic", "--profile", "--all") == 0
    assert "µs" in capsys.readouterr().out
    assert run(*check, "--option", "levle=basic") == 2
    assert "has no option 'levle'; did you mean 'level'?" in capsys.readouterr().err
    assert run(*check, "--option", "basic") == 2
    assert "an option is written as name=value, not 'basic'" in capsys.readouterr().err


def test_show_lists_a_dump(folder, capsys):
    """It prints key, type, shape and size, statistics if requested, and JSON."""
    run("steal", "export.py:good", "-o", "ref.onnx", "-q")
    capsys.readouterr()

    assert run("show", "ref.onnx", "--statistics") == 0
    out = capsys.readouterr().out
    assert "('linear', 0, 'I') -- ((f32[2, 3] 1 … 1, mean 1,), {}) -- 24 bytes" in out
    assert "4 values, 96 bytes; torch " in out
    assert run("show", "ref.onnx", "--json") == 0
    assert json.loads(capsys.readouterr().out)["records"][1]["key"] == ["linear", 0, "I"]


def test_diff_compares_two_dumps_without_a_model(folder, capsys):
    """The exit code is 0 for equal dumps and 1 for others, and the first difference is named."""
    run("steal", "export.py:good", "-o", "a.onnx", "-q")
    run("steal", "filch.compare:tiny_llm", "-o", "b.onnx", "-q")
    capsys.readouterr()

    assert run("diff", "a.onnx", "a.onnx") == 0
    assert "all close" in capsys.readouterr().out
    assert run("diff", "a.onnx", "b.onnx") == 1
    assert "the first that differs is (root)#0.I" in capsys.readouterr().out
    assert run("diff", "a.onnx", "b.onnx", "--json") == 1
    assert json.loads(capsys.readouterr().out)["close"] is False


@slow
def test_json_is_printed_even_if_nothing_else_is(folder, capsys):
    """`--json --quiet` prints what `--json` does, without the names of the files that are written."""
    run("steal", "export.py:good", "-o", "ref.onnx", "-q")
    run("export", "export.py:good", "-o", "model.onnx", "-q")
    assert capsys.readouterr().out == ""
    for command in (
        ["check", "export.py:good", "-o", "report.html"],
        ["compare", "ref.onnx", "model.onnx"],
        ["diff", "ref.onnx", "ref.onnx"],
        ["bisect", "ref.onnx", "model.onnx"],
        ["matrix", "export.py:good"],
    ):
        assert run(*command, "--quiet") == 0
        assert capsys.readouterr().out == ""
        assert run(*command, "--quiet", "--json") == 0
        assert json.loads(capsys.readouterr().out)


BAD = {
    "a file that is to be optimized": (
        ["check", "export.py:good", "--program", "model.onnx", "--optimize"],
        "--optimize is for the exported model",
    ),
    "no such dump": (["compare", "none.onnx", "model.onnx"], "there is no file 'none.onnx'"),
    "no such program": (["compare", "ref.onnx", "none.onnx"], "there is no file 'none.onnx'"),
    "no ONNX file": (["show", "export.py"], "'export.py' is not an ONNX file"),
    "a truncated dump": (["show", "short.onnx"], "'short.onnx' is not an ONNX file, or is truncated"),
    "a dump of another model": (
        ["compare", "other.onnx", "model.onnx"],
        "has no calls of Scaled, the model of the program, but calls of LLM",
    ),
    "an unknown backend": (["check", "export.py:good", "-b", "tensorflow"], "there is no backend 'tensorflow'"),
    "programs instead of dumps": (
        ["diff", "model.onnx", "changed.onnx"],
        "but not a dump, which steal_forward(dump_file=…) writes; `filch compare model.onnx changed.onnx` compares",
    ),
    "no GPU": (["check", "export.py:good", "-b", "onnxruntime-cuda"], "backend 'onnxruntime-cuda' needs "),
    "a factory that raises": (
        ["check", "export.py:raises"],
        "the factory 'export.py:raises' raised ValueError: no weights here",
    ),
    "a factory without arguments": (
        ["check", "export.py:alone"],
        "has to return (model, args[, kwargs[, dynamic_shapes]]), not Scaled",
    ),
    "no such factory": (["check", "export.py:bad"], "'export.py' has no function 'bad'; it has '"),
    "a factory misspelt": (["check", "export.py:god"], "'export.py' has no function 'god'; did you mean 'good'?"),
    "a report below a file": (
        ["check", "export.py:good", "-o", "model.onnx/r.html"],
        "can't write 'model.onnx/r.html': ",
    ),
    "no such module": (["check", "no_such_package:bad"], "can't import 'no_such_package': ModuleNotFoundError"),
    "no colon": (["check", "export.py"], "a model is named as package.module:factory or path.py:factory"),
    "an export that torch refuses": (["check", "export.py:refused"], "torch can't export Branches: "),
    "a factory that exits": (["check", "export.py:exits"], "the factory 'export.py:exits' raised SystemExit: 0"),
    "a factory that skips": (["check", "export.py:skips"], "the factory 'export.py:skips' raised Skipped: no weights"),
    "a model that fails": (
        ["steal", "export.py:fails", "-o", "x.onnx"],
        "Linear itself fails on these inputs: RuntimeError",
    ),
    "a tolerance that is no number": (
        ["diff", "ref.onnx", "ref.onnx", "--tolerance", "nan"],
        "a tolerance is a number",
    ),
    "a negative tolerance": (
        ["diff", "ref.onnx", "ref.onnx", "--tolerance", "-1"],
        "a tolerance is a number from 0 on",
    ),
    "no name for the file": (["export", "export.py:good", "-o", ""], "is not a file name"),
    "a changed file on eager": (["compare", "ref.onnx", "changed.onnx", "-b", "eager"], "this graph was changed since"),
    "a folder that is not there": (
        ["steal", "export.py:good", "-o", "no/ref.onnx"],
        "no/ref.onnx': No such file or directory",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence_and_exit_code_2(folder, capsys, name):
    """The message is on standard error, without a traceback."""
    run("steal", "export.py:good", "-o", "ref.onnx", "-q")
    run("export", "export.py:good", "-o", "model.onnx", "-q")
    run("steal", "filch.compare:tiny_llm", "-o", "other.onnx", "-q")
    (folder / "short.onnx").write_bytes((folder / "ref.onnx").read_bytes()[:300])
    changed = ir.load("model.onnx")
    changed.graph.initializers["linear.bias"].const_value = ir.tensor([1.0, 2.0, 3.0], name="linear.bias")
    ir.save(changed, "changed.onnx")
    capsys.readouterr()
    arguments, message = BAD[name]
    if name == "no GPU":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is one")

    assert run(*arguments) == 2

    err = capsys.readouterr().err
    assert message in err
    first, *place = err.strip().splitlines()
    assert first.startswith("filch: ")
    if place:
        assert place[0].startswith("  export.py:")
        assert place[1:] == ["  (--traceback prints all stack frames)"]


def test_output_of_the_users_code_does_not_mix_with_ours(folder, capsys):
    """Standard output is only JSON with --json, also with --quiet."""
    assert run("check", "export.py:talks", "--json") == 0
    out = capsys.readouterr()
    assert json.loads(out.out)[0]["close"] is True
    assert "hello from the factory" in out.err
    assert run("check", "export.py:talks", "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)[0]["close"] is True


def test_a_crash_exits_with_2(folder, capsys, monkeypatch):
    """Exit code 1 always means that a value differs."""
    monkeypatch.setattr("filch.diff", lambda *_, **__: 1 / 0)

    assert run("diff", "a", "b") == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_usage_errors_end_with_2(folder, capsys):
    """This is the exit code of click."""
    assert run("compare", "one") == 2
    assert run("nothing") == 2


def test_the_installed_command_starts():
    """It runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "filch.compare", "--help"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0
    commands = ("demo", "show", "steal", "recover", "export", "compare", "diff", "check", "matrix", "sweep")
    assert all(command in done.stdout for command in commands)


def test_a_trace_is_written_as_pickle_and_as_json(folder, capsys):
    """The trace is of a training step; the printed counts are those of the files."""
    assert run("trace", "export.py:good", "-o", "out/step.pkl", "--train", "--backend", "eager") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"written: {Path('out/step.pkl')}, {Path('out/step.json')}: ")
    assert "gradients, " in out and out.endswith("0 generated\n")
    assert run("trace", "export.py:good", "-o", "call.json", "--backend", "eager", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["written"] == ["call.json"]
    assert (found["operators"], found["gradients"], found["executions"]) == (3, 0, 3)
    assert run("trace", "export.py:good", "-o", "call.pkl", "--backend", "eager", "--quiet") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export.py:good", "-o", "trace.txt"), "a trace is written to a .pkl or a .json, not to 'trace.txt'"),
        (("export.py:good", "-o", "t.pkl", "-b", "ort"), "there is no backend 'ort' that traces"),
        (("export.py:fails", "-o", "t.pkl"), "Linear itself fails on these inputs: "),
        (("export.py:refused", "-o", "t.pkl", "--train"), "Branches has no parameter that takes a gradient"),
    ],
)
def test_a_trace_that_cannot_be_made_exits_with_2(folder, capsys, arguments, message):
    """The message is one sentence."""
    assert run("trace", *arguments) == 2
    told = capsys.readouterr().err
    assert message in told and "Traceback" not in told
    assert not list(folder.glob("t*.*k*"))


DEEP = """
import torch

def helper(config):
    return config["n"]

def make():
    return torch.nn.Linear(helper({}), 1), (torch.ones(1),)

class Broken(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(3)

def fails():
    return Broken(), (torch.ones(2),)
"""


@pytest.mark.parametrize(
    ("factory", "frame"),
    [
        ("deep.py:make", '  deep.py:5, in helper: return config["n"]\n'),
        ("deep.py:fails", "  deep.py:12, in forward: return x @ torch.ones(3)\n"),
    ],
)
def test_an_error_in_the_users_code_names_its_line(folder, capsys, factory, frame):
    """The innermost frame that is neither Filch's nor an installed package's; `--traceback` prints all frames."""
    (folder / "deep.py").write_text(DEEP)

    assert run("check", factory) == 2
    message = capsys.readouterr().err
    assert frame in message and "Traceback" not in message
    assert run("check", factory, "--traceback") == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_each_output_is_written(folder, capsys):
    """`-o` may be repeated; a wrong suffix is told before the model is made."""
    assert run("check", "export.py:good", "-o", "r.html", "-o", "r.json", "-o", "r.md") == 0
    assert "written: r.html, r.json, r.md" in capsys.readouterr().out
    assert (folder / "r.html").is_file() and json.loads((folder / "r.json").read_text())["close"] is True
    assert run("check", "no_such_package:make", "-o", "r.html", "-o", "r.txt") == 2
    assert "the result is written as .csv, .html, .json, .md, not as 'r.txt'" in capsys.readouterr().err


QUICK = (
    (["--help"], 0, "Record every intermediate tensor"),
    (["check", "--help"], 0, "onnxruntime-cpu"),
    (["chekc"], 2, "No such command 'chekc'"),
    (["check", "--bakend", "eager", "model.py:make"], 2, "No such option"),
    (["check", "model.py:make", "-b", "eagr"], 2, "filch: there is no backend 'eagr'; did you mean 'eager'?"),
    (["compare", "a", "b", "--view", "side"], 2, "'side' is not one of"),
    (["check", "model.py:make", "--tolerance", "small"], 2, "--tolerance is a number or 'default', not 'small'"),
)


@pytest.mark.parametrize(("arguments", "code", "message"), QUICK)
def test_help_and_usage_errors_do_not_import_torch(arguments, code, message):
    """Importing torch takes over a second; a help text, a completion or a typo must not wait for it."""
    script = (
        "import sys\n"
        "class Refused:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'numpy', 'onnx', 'onnxruntime'):\n"
        "            raise RuntimeError(f'{name} was imported')\n"
        "sys.meta_path.insert(0, Refused())\n"
        "from filch.compare.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)

    assert done.returncode == code, done.stderr
    assert message in " ".join((done.stdout + done.stderr).split())


def test_names_known_without_torch_are_those_of_the_library():
    """The lists for `--help` are copies."""
    from filch.compare.cli._options import BACKENDS, VIEWS, Precision, TableView, backend_names
    from filch.compare.results._report import TABLES
    from filch.export import Precision as LibraryPrecision
    from filch.export.backends import backend_names as library_backends
    from filch.export.views import view_names

    assert set(BACKENDS) <= set(library_backends()) == set(backend_names())
    assert set(VIEWS) <= set(view_names())
    assert get_args(Precision) == get_args(LibraryPrecision)
    assert {*get_args(TableView)} == {*TABLES} - {"dynamo"}


def test_the_next_command_is_the_command_without_what_only_prints(folder, capsys):
    """Options that change the comparison are kept; the suggested command runs and ends the same."""
    arguments = ("check", "export.py:good", "-b", "reference", "--tolerance", "1e-3")
    assert run(*arguments, "-q", "--all") == 0
    assert run(*arguments, "--wide", "--view", "modules", "-o", "r.json") == 0
    command = capsys.readouterr().out.splitlines()[-3]
    assert command == "  filch check export.py:good --tolerance 1e-3 -b reference --all"
    assert json.loads((folder / "r.json").read_text())["next_command"]["command"] == command.strip()
    assert run(*shlex.split(command)[1:]) == 0


def test_ctrl_c_ends_with_130(folder, capsys, monkeypatch):
    """There is no traceback."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("filch.diff", interrupted)

    assert run("diff", "a", "b") == 130
    assert capsys.readouterr().err == "filch: interrupted\n"


@pytest.mark.parametrize(
    "arguments", [("-breference", "-or.json", "--", "export.py:good"), ("--backend=reference", "export.py:good")]
)
def test_the_next_command_is_complete_however_options_are_written(folder, capsys, arguments):
    """Values that are attached to an option, and the end of options, would make what is appended an argument."""
    assert run("check", *arguments) == 0
    assert "  filch check export.py:good -b reference --all\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["view", "fleet", "show", "check", "history", "recover"])
def test_links_that_form_a_loop_are_an_error(command, tmp_path, monkeypatch, capsys):
    """In one sentence, by all commands that take a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.onnx").symlink_to("b.onnx")
    (tmp_path / "b.onnx").symlink_to("a.onnx")
    assert run(command, "a.onnx") == 2
    assert capsys.readouterr().err.count("\n") == 1
