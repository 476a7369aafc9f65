"""The commands that reports suggest lead to a repro, and the files for agents name commands and files that exist."""

import re
import shutil
from pathlib import Path

import onnx
import pytest

from support.processes.commands import run
from support.processes.following import follow
from support.processes.stories import skip_if_mended
from support.thorough import slow

pytestmark = pytest.mark.usefixtures("forked_repros")
ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / "skills" / "filch" / "SKILL.md"
MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

def make():
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(4)]).eval(), (torch.randn(3, 16),)
"""
STORIES = [
    pytest.param("padded_pool.py", "onnxruntime-cpu", id="onnxruntime"),
    pytest.param("best_row.py", "inductor", id="inductor", marks=slow),
    pytest.param("mean_of_messages.py", "onnxruntime-cpu", id="exporter"),
]


def change_epsilon(model):
    (node, *_) = (node for node in model.graph.node if node.op_type == "LayerNormalization")
    next(attribute for attribute in node.attribute if attribute.name == "epsilon").f = 1e-2
    return node.name


def scale_weight(model):
    (_, _, tensor, *_) = (tensor for tensor in model.graph.initializer if tensor.name.endswith("up.bias"))
    array = onnx.numpy_helper.to_array(tensor) * 1.1
    tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype("float32"), tensor.name))
    return next(node.name for node in model.graph.node if tensor.name in node.input)


def change_activation(model):
    node = [node for node in model.graph.node if node.op_type == "Gelu"][1]
    node.attribute.append(onnx.helper.make_attribute("approximate", "tanh"))
    return node.name


FAULTS = (change_epsilon, scale_weight, change_activation)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A factory, a dump of its model and the exported program."""
    folder = tmp_path_factory.mktemp("following")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "model.py").write_text(MODEL)
        assert run("steal", "model.py:make", "-o", "ref.onnx", "-q") == 0
        assert run("export", "model.py:make", "-o", "model.onnx", "-q") == 0
    return folder


@slow
@pytest.mark.parametrize("fault", FAULTS)
def test_suggestions_lead_from_a_fault_to_its_node(files, tmp_path, monkeypatch, fault):
    """Three commands: compare, find the cause, run the repro."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    model = onnx.load("model.onnx")
    node = fault(model)
    onnx.save(model, "model.onnx")

    followed = follow("filch compare ref.onnx model.onnx")

    assert followed.repro is not None, followed.output
    assert node in {item.name for item in onnx.load(followed.repro / "model.onnx").graph.node}
    assert len(followed.commands) == 3


@slow
@pytest.mark.parametrize(("model", "backend"), STORIES)
def test_suggestions_lead_from_each_story_to_its_repro(tmp_path, monkeypatch, model, backend):
    """The bug is in ONNX Runtime, in Inductor or in the exporter; the first command is the one of the guides."""
    shutil.copy(ROOT / "docs" / "stories" / model, tmp_path)
    monkeypatch.chdir(tmp_path)

    followed = follow(f"filch check {model}:make -b {backend}")

    if followed.repro is None:
        skip_if_mended(model)
    assert followed.repro is not None, followed.output
    assert len(followed.commands) == 3


def test_a_clean_program_suggests_no_repro(files, monkeypatch):
    """The suggestion shows all rows, and then nothing else is suggested."""
    monkeypatch.chdir(files)

    followed = follow("filch compare ref.onnx model.onnx")

    assert followed.repro is None
    assert followed.commands == ("filch compare ref.onnx model.onnx", "filch compare ref.onnx model.onnx --all")


@pytest.mark.parametrize("columns", [60, 80])
def test_the_summary_fits_on_a_screen(files, tmp_path, monkeypatch, capsys, columns):
    """At most 30 lines if all is close, at most 60 if not, none longer than the terminal but the next command."""
    monkeypatch.setenv("COLUMNS", str(columns))
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert run("check", "model.py:make") == 0
    close = capsys.readouterr().out.splitlines()
    model = onnx.load("model.onnx")
    change_epsilon(model)
    onnx.save(model, "model.onnx")
    assert run("compare", "ref.onnx", "model.onnx") == 1
    different = capsys.readouterr().out.splitlines()

    assert (len(close) <= 30, len(different) <= 60) == (True, True)
    assert max(map(len, (*close[:-1], *different[:-1]))) <= columns


def test_the_skill_and_llms_txt_name_commands_and_files_that_exist(capsys):
    """Each option and command in them is one of `filch`, each link a file."""
    for document in (SKILL, ROOT / "llms.txt"):
        text = document.read_text("utf-8")
        links = re.findall(r"\]\(([^)#]+)\)", text)
        assert [link for link in links if not (ROOT / link).exists()] == []
    for command, arguments in set(re.findall(r"filch (\w+)([^`\n]*)", SKILL.read_text("utf-8"))):
        assert run(command, "--help") == 0
        shown = capsys.readouterr().out
        options = re.findall(r"(?<!\w)--?[a-z][\w-]*", arguments)
        assert [option for option in options if option not in shown] == [], command
