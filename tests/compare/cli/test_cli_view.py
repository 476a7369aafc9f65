"""`filch view`, and the files that `check` and `compare` write."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
import zipfile
from functools import partial
from pathlib import Path

import onnx
import pytest
import torch

from filch.compare import load_report
from filch.export import trace_graph
from filch.export.views import view_names
from support.processes.commands import run
from support.thorough import slow

FACTORY = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten()).eval(), (torch.ones(1, 1, 4, 4),)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a factory, its program, and a report on it."""
    folder = tmp_path_factory.mktemp("view")
    (folder / "net.py").write_text(FACTORY)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run("export", "net.py:net", "-o", "model.onnx", "-q") == 0
        assert run("steal", "net.py:net", "-o", "ref.onnx", "-q") == 0
        assert run("compare", "ref.onnx", "model.onnx", "-o", "report.json", "-q") == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """Copy these files to a folder of this test and change to it."""
    for file in made.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("source", ["net.py:net", "model.onnx", "report.json"])
@pytest.mark.parametrize("name", view_names())
def test_each_view_draws_models_and_reports(folder, capsys, source, name):
    """The file is named after the source, and no existing file is overwritten."""
    before = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    if name.startswith("model-explorer") and (source != "report.json" or name.endswith("time")):
        assert run("view", source, "--as", name) == 2  # it draws nothing but what was found
        return

    assert run("view", source, "--as", name) == 0

    assert {file: file.read_bytes() for file in before} == before
    out = capsys.readouterr().out
    written = [file.name for file in folder.iterdir() if file.is_file() and file not in before]
    if name == "text":
        assert "Graph(" in out and not written
    else:
        assert out.splitlines()[0] == f"written: {written[0]}" and len(written) == 1


def test_the_suffix_chooses_the_view(folder, capsys):
    """Without a suffix it is a page; a suffix of several views needs --as."""
    assert run("view", "model.onnx", "-o", "a.dot") == 0
    assert (folder / "a.dot").read_text().startswith("digraph")
    assert run("view", "model.onnx") == 0
    assert (folder / "model.html").read_text().startswith("<!doctype html>")
    assert run("view", "model.onnx", "-o", "a.json") == 2
    assert "write .json: choose a view with --as: " in capsys.readouterr().err
    assert run("view", "model.onnx", "-o", "a.pdf") == 2
    assert "no view writes .pdf: choose a view with --as: " in capsys.readouterr().err


def test_a_backends_graph_names_what_it_fused(folder, capsys):
    """The program is compiled, and not run."""
    assert run("view", "net.py:net", "--backend", "onnxruntime-cpu", "--option", "level=extended", "--as", "text") == 0
    assert 'fusion="Conv Relu"' in capsys.readouterr().out


def test_a_step_of_training_is_drawn_forward_and_backward(folder, capsys, monkeypatch):
    """The default backend is Inductor; its kernels are tested with traces."""
    asked: list[str] = []

    def traced(*given, backend, **told):
        asked.append(backend)
        return trace_graph(*given, backend="eager", **told)

    monkeypatch.setattr("filch.compare.cli._graph_source.trace_graph", traced)

    assert run("view", "net.py:net", "--train", "--as", "text") == 0
    assert run("view", "net.py:net", "--train", "-b", "eager", "--as", "text") == 0

    assert asked == ["inductor", "eager"]
    assert capsys.readouterr().out.count(" = convolution_backward(") == 2


def test_a_program_of_torch_export_is_drawn(folder, capsys):
    """The file is one that torch saved."""
    model = torch.nn.Linear(2, 2).eval()
    torch.export.save(torch.export.export(model, (torch.ones(1, 2),)), folder / "linear.pt2")

    assert run("view", "linear.pt2", "--as", "text") == 0
    assert "linear(" in capsys.readouterr().out


def test_a_report_is_drawn_onto_the_onnx_file_that_it_is_about(folder):
    """The file is at the path in the report, or at that of --model."""
    assert run("view", "report.json", "--as", "netron", "-o", "seen.onnx") == 0
    (folder / "model.onnx").rename(folder / "moved.onnx")
    assert run("view", "report.json", "--as", "netron", "-o", "again.onnx", "--model", "moved.onnx") == 0

    for file in ("seen.onnx", "again.onnx"):
        told = [prop.key for node in onnx.load(folder / file).graph.node for prop in node.metadata_props]
        assert "filch.error" in told


def test_a_stage_of_a_report_is_chosen(folder, capsys):
    """The exported graph has more nodes than the compiled one."""
    lengths = {}
    for stage in ("exported", "compiled"):
        assert run("view", "report.json", "--as", "text", "--stage", stage) == 0
        lengths[stage] = len(capsys.readouterr().out.splitlines())
    assert lengths["exported"] >= lengths["compiled"] > 0


BAD = {
    "a compiled graph that there is not": (
        ["view", "model.onnx", "--stage", "compiled"],
        "--stage compiled needs a report with a compiled graph, or --backend",
    ),
    "a suffix that the view has not": (
        ["view", "none.py:net", "--as", "html", "-o", "a.svg"],
        "view 'html' writes .html, not .svg",
    ),
    "a step of training that is optimized": (
        ["view", "net.py:net", "--train", "--optimize"],
        "--option and --optimize",
    ),
    "a step of training of no backend": (["view", "net.py:net", "--train", "-b", "tpu"], "there is no backend 'tpu'"),
    "a view that there is not": (["view", "model.onnx", "--as", "htm"], "there is no view 'htm'; did you mean 'html'?"),
    "a report that is compiled": (
        ["view", "report.json", "-b", "eager"],
        "'report.json' can't be recompiled: --backend",
    ),
    "an option without a backend": (["view", "model.onnx", "--option", "a=b"], "--option needs --backend"),
    "the source as its own picture": (
        ["view", "report.json", "--as", "hidet", "-o", "report.json"],
        "--output would overwrite the input 'report.json': give another name",
    ),
    "the source by another name": (
        ["view", "model.onnx", "--as", "netron", "-o", "link.onnx"],
        "--output would overwrite the input 'model.onnx': give another name",
    ),
    "a stage that there is not": (
        ["view", "report.json", "--stage", "fused"],
        "there is no stage 'fused'; choose exported or",
    ),
    "a dump": (["view", "ref.onnx"], "'ref.onnx' is a dump, not a program"),
    "no report": (["view", "none.json"], "can't read 'none.json': No such file"),
    "no program of torch's": (["view", "none.pt2"], "'none.pt2' is not a program saved by torch.export: No such file"),
    "no zip": (["view", "text.pt2"], "'text.pt2' is not a program saved by torch.export: it is not a zip file"),
    "a zip of others": (["view", "other.pt2"], "'other.pt2' is not a program saved by torch.export: "),
    "a backend without a graph of its own": (
        ["view", "model.onnx", "-b", "reference"],
        "backend 'reference' has no compiled graph: it runs the exported program unchanged",
    ),
    "a report in a format that there is not": (
        ["compare", "ref.onnx", "model.onnx", "-o", "report.pdf"],
        "the result is written as .csv, .html, .json, .md, not as 'report.pdf'; see `filch view`",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(folder, capsys, name):
    """The message is on standard error, and the exit code is 2."""
    arguments, message = BAD[name]
    Path("text.pt2").write_text("hi")
    Path("link.onnx").symlink_to("model.onnx")
    with zipfile.ZipFile("other.pt2", "w") as file:
        file.writestr("other.txt", "hi")

    assert run(*arguments) == 2

    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("filch: ") and len(err.strip().splitlines()) == 1


def test_check_writes_a_report_for_each_backend(folder, capsys):
    """The backend's name is before the suffix; reports that pages are made from have statistics."""
    assert run("check", "net.py:net", "-b", "reference", "-b", "eager", "-o", "out/r.json") == 0

    assert sorted(os.listdir(folder / "out")) == ["r.eager.json", "r.reference.json"]
    assert "written: out/r.reference.json, out/r.eager.json" in capsys.readouterr().out
    report = load_report("out/r.reference.json")
    assert report.backend == "reference" and all(row.spread for row in report.rows if row.judged)


@pytest.mark.parametrize("suffix", [".csv", ".html", ".md"])
def test_a_report_is_written_in_the_format_of_its_suffix(folder, suffix):
    """The file equals what the report's method writes."""
    assert run("compare", "ref.onnx", "model.onnx", "-o", f"r{suffix}", "-q") == 0
    text = (folder / f"r{suffix}").read_text()
    assert {".csv": "call,stage", ".html": "<!doctype html>", ".md": "model.onnx on"}[suffix] in text[:60]


@slow
def test_what_is_written_is_served_until_it_is_interrupted(folder):
    """The netron package serves it, on this machine only."""
    pytest.importorskip("netron")
    command = [sys.executable, "-m", "filch.compare", "view", "model.onnx", "-o", "seen.onnx", "--serve"]
    # What a shell runs in the background, pytest too, ignores Ctrl-C, and so would what it starts.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, preexec_fn=heard) as running:  # noqa: PLW1509  no thread holds a lock here
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == "written: seen.onnx\n"
            url = running.stdout.readline().split()[4].rstrip(";")
            with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310  our own address
                assert b"netron" in page.read().lower()
            running.send_signal(signal.SIGINT)
            assert running.wait(20) == 0
        finally:
            running.kill()


def test_json_of_a_report_keeps_its_keys(folder):
    """Other programs read these keys."""
    found = json.loads((folder / "report.json").read_text())
    assert {"backend", "reference", "program", "close", "headline", "rows", "modules", "outcomes", "graphs"} <= {*found}
