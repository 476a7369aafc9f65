"""What docs/stories.md tells of bugs that others reported is what happens, as long as the bugs show."""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import commands
import numpy as np
import onnxruntime as ort
import pytest
import torch
from compilers import needs_compiler

from filch.compare.models._factory import make_subject

DOCS = Path(__file__).resolve().parents[2] / "docs"
CUT = "…"


@dataclass(frozen=True)
class Shown:
    """A command of a story.

    Attributes:
        command: it, as it is written.
        pieces: what it prints, where it was cut.
    """

    command: str
    pieces: list[str]


def story(title: str) -> list[Shown]:
    """The commands below a heading."""
    text = (DOCS / "stories.md").read_text("utf-8")
    (section,) = re.findall(rf"^## {title}.*?(?=^## )", text, flags=re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^```console\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    commands_and_output = [one.partition("\n") for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Shown(told, re.split(rf"^{CUT}$", out, flags=re.MULTILINE)) for told, _, out in commands_and_output]


def plain(text: str) -> str:
    """The text in one line, without what rounding and the processor say in: errors, ratios, fingerprints."""
    text = re.sub(r"\d\.\de[-+]\d\d|\b\de\d+\b|\b\d{1,3}(,\d{3})+\b|\b\d+\.\d+\b", "#", text)
    return " ".join(text.split())


def run(command: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints; those of Filch run in this process."""
    program, *arguments = shlex.split(command)
    if program != "filch":
        there = [sys.executable if program == "python" else program, *arguments]
        done = subprocess.run(there, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = commands.run(*arguments)
    return code, printed.getvalue()


def check(shown: Shown, expected: int) -> None:
    """It ends as it should, and prints what is shown."""
    code, printed = run(shown.command)
    assert code == expected, f"$ {shown.command}\n{printed}"
    for piece in shown.pieces:
        assert plain(piece) in plain(printed), f"$ {shown.command}\n{printed}"


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


needs_patience = pytest.mark.skipif(
    "FILCH_ALL_STORIES" not in os.environ, reason="compiles for a minute: FILCH_ALL_STORIES=1 runs it"
)
EXPORTER = f"torch {torch.__version__} with onnxscript {metadata.version('onnxscript')}"


@pytest.mark.parametrize(
    ("title", "model", "by", "made_by"),
    [
        pytest.param(
            "ONNX Runtime",
            "padded_pool.py",
            by_onnxruntime(ort.GraphOptimizationLevel.ORT_ENABLE_ALL),
            f"onnxruntime {ort.__version__}",
            id="onnxruntime#24737",
        ),
        pytest.param(
            "Inductor",
            "best_row.py",
            by_inductor,
            f"torch {torch.__version__}",
            id="pytorch#193751",
            marks=[needs_compiler, needs_patience],
        ),
        pytest.param(
            "The exporter",
            "mean_of_messages.py",
            by_onnxruntime(ort.GraphOptimizationLevel.ORT_DISABLE_ALL),
            EXPORTER,
            id="chemprop#1335",
        ),
    ],
)
def test_a_story_is_true(tmp_path, monkeypatch, *, title, model, by, made_by):
    """Each command gives what stands below it: the node, what is to blame, and a repro that exits with 1."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DOCS / "stories" / model, tmp_path)
    steal, export, *rest = story(title)

    check(steal, 0)
    check(export, 0)
    subject = make_subject(f"{model}:make")
    if np.allclose(by(subject), subject.model(*subject.args).detach().numpy(), atol=1e-4):
        pytest.skip(f"{made_by} no longer shows this bug: docs/stories.md needs another one")

    assert [one.command.split()[1] for one in rest[:3]] == ["compare", "bisect", "repro"]
    assert "python repro/repro.py" in [one.command for one in rest]
    for one in rest:
        mended = "disabled_optimizers=" in one.command
        check(one, 1 if one.command.startswith(("filch compare", "filch bisect", "python")) and not mended else 0)
