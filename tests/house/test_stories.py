"""What docs/stories.md tells of bugs that others reported is what happens, as long as the bugs show."""

import importlib
import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

from filch.compare import diff as compare_dumps
from filch.compare.models._factory import make_subject
from support.processes.compilers import needs_compiler
from support.processes.documents import run, shows
from support.processes.stories import installs, skip_if_mended, story
from support.thorough import slow

pytestmark = pytest.mark.usefixtures("forked_repros")
DOCS = Path(__file__).resolve().parents[2] / "docs"


def check(command, shown, expected):
    """It ends as it should, and prints what is shown."""
    code, printed = run(command)
    assert code == expected, f"$ {command}\n{printed}"
    assert not shown or shows(shown, printed), f"$ {command}\n{printed}"


def by_onnxruntime(level):
    """What ONNX Runtime gives at a level, without anything of Filch."""

    def run(subject):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        return session.run(None, dict(zip(names, (one.numpy() for one in subject.args), strict=True)))[0]

    return run


def by_inductor(subject):
    """What Inductor gives, likewise."""
    return torch.compile(subject.model)(*subject.args).detach().numpy()


@slow
@pytest.mark.parametrize(
    ("model", "by"),
    [
        pytest.param(
            "padded_pool.py", by_onnxruntime(ort.GraphOptimizationLevel.ORT_ENABLE_ALL), id="onnxruntime#24737"
        ),
        pytest.param("best_row.py", by_inductor, id="pytorch#193751", marks=needs_compiler),
        pytest.param(
            "mean_of_messages.py", by_onnxruntime(ort.GraphOptimizationLevel.ORT_DISABLE_ALL), id="chemprop#1335"
        ),
    ],
)
def test_a_story_is_true(tmp_path, monkeypatch, *, model, by):
    """Each command gives what stands below it: the node, what is to blame, and a repro that exits with 1."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DOCS / "stories" / model, tmp_path)
    steal, export, *rest = story(model)

    check(*steal, 0)
    check(*export, 0)
    subject = make_subject(f"{model}:make")
    if np.allclose(by(subject), subject.model(*subject.args).detach().numpy(), atol=1e-4):
        skip_if_mended(model)

    assert [command.split()[1] for command, _ in rest[:3]] == ["compare", "bisect", "repro"]
    assert "python repro/repro.py" in [command for command, _ in rest]
    for command, shown in rest:
        mended = "disabled_optimizers=" in command or "layout_optimization=False" in command
        differs = command.startswith(("filch compare", "filch bisect", "python")) and not mended
        check(command, shown, 1 if differs else 0)


@pytest.mark.parametrize("model", sorted(path.name for path in (DOCS / "stories").glob("*.py")))
def test_a_story_installs_the_version_that_has_its_bug(monkeypatch, model):
    """With it, a bug that does not show is no reason to skip; with another one, the reason names both."""
    (installed,) = installs(model)
    name, version = installed.split("==")
    module = importlib.import_module(name)
    monkeypatch.setattr(module, "__version__", version)
    skip_if_mended(model)
    monkeypatch.setattr(module, "__version__", "99.0")
    with pytest.raises(pytest.skip.Exception, match=f"does not show: needs {installed}, and this is 99.0"):
        skip_if_mended(model)


@slow
def test_the_story_of_several_processes_is_true(tmp_path, monkeypatch):
    """The backward pass of the module is named that has the wrong gradient."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DOCS / "stories" / "policy_loss.py", tmp_path)
    reference, run_ranks, diff = story("policy_loss.py")

    check(*reference, 0)
    check(*run_ranks, 0)
    if compare_dumps("reference.onnx", "run.*.onnx").close:
        skip_if_mended("policy_loss.py")

    check(*diff, 1)
