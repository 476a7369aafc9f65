"""The GitHub Action: its scripts, run by bash as a runner does."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.thorough import slow

ROOT = Path(__file__).resolve().parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
SCRIPTS = {name: step["run"] for name, step in STEPS.items() if "run" in step}
MODELS = """
import torch
from torch import nn

def close():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU()).eval(), (torch.ones(2, 8),)

class Branching(nn.Module):
    def forward(self, x):
        return x * (2 if torch.compiler.is_exporting() else 1)

def different():
    return nn.Sequential(nn.Linear(8, 8), Branching()).eval(), (torch.ones(2, 8),)
"""


@pytest.fixture
def runner(tmp_path):
    """Return a function that runs a script of the action with inputs, and returns the process."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    (tmp_path / "bin").mkdir()
    (tmp_path / "models.py").write_text(MODELS)
    filch = tmp_path / "bin" / "filch"
    filch.write_text(f'#!/bin/sh\nexec {sys.executable} -m filch "$@"\n')
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$RUNNER_TEMP/pip.txt"\n')
    for program in (filch, python):
        program.chmod(0o755)
    files = {"GITHUB_OUTPUT": "output.txt", "GITHUB_STEP_SUMMARY": "summary.md"}
    environment = os.environ | {
        **{name: str(tmp_path / file) for name, file in files.items()},
        "GITHUB_ACTION_PATH": str(ROOT),
        "RUNNER_TEMP": str(tmp_path),
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }

    def run(step, outputs=None, **inputs):
        values = {f"inputs.{name}": entry.get("default", "") for name, entry in ACTION["inputs"].items()}
        values |= {f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()}
        values |= {f"steps.check.outputs.{name}": value for name, value in (outputs or {}).items()}
        variables = {
            name: re.sub(r"\$\{\{ (\S+) \}\}", lambda match: values[match[1]], text)
            for name, text in STEPS[step]["env"].items()
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", SCRIPTS[step]]  # as a runner does
        return subprocess.run(
            command, cwd=tmp_path, env=environment | variables, capture_output=True, text=True, check=False
        )

    run.path = tmp_path
    return run


def _outputs(runner):
    lines = (runner.path / "output.txt").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_no_input_is_inserted_into_the_text_of_a_script():
    """An input with shell syntax would run as a command; environment variables are not expanded again."""
    assert len(SCRIPTS) == 3
    assert not [name for name, script in SCRIPTS.items() if "${{" in script]
    used = re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text("utf-8"))
    assert {*used} == ACTION["inputs"].keys(), "an input is not used, or not declared"


@slow
def test_a_model_that_is_close_passes(runner):
    """The summary says so, and the page is in the folder of the artifact."""
    done = runner("Compare", model="models.py:close", backends="onnxruntime-cpu\nreference")

    assert done.returncode == 0, done.stdout + done.stderr
    outputs = _outputs(runner)
    assert outputs["result"] == "close"
    assert len(list(Path(outputs["folder"]).glob("*.html"))) == 2
    assert "### Filch: all values are close to PyTorch's" in (runner.path / "summary.md").read_text()
    for fail_on in ("difference", "error", "never"):
        assert runner("Fail if values differ", outputs, fail_on=fail_on).returncode == 0


@slow
def test_a_model_that_differs_fails_the_job_and_is_in_the_summary(runner):
    """The summary has the first divergence, as text that can't become HTML."""
    done = runner("Compare", model="models.py:different")

    assert done.returncode == 0, "the report must be uploaded before the job fails"
    outputs = _outputs(runner)
    assert outputs["result"] == "different"
    summary = (runner.path / "summary.md").read_text()
    assert "### Filch: values differ from PyTorch's" in summary
    assert "Divergence starts at" in summary and "&lt;------" in summary
    assert runner("Fail if values differ", outputs).returncode == 1
    assert runner("Fail if values differ", outputs, fail_on="error").returncode == 0
    assert runner("Fail if values differ", outputs, fail_on="differences").returncode == 2


@slow
def test_a_comparison_that_could_not_be_made_is_no_difference(runner):
    """The reason is in the summary."""
    runner("Compare", model="models.py:missing")

    outputs = _outputs(runner)
    assert outputs["result"] == "failed"
    assert "missing" in (runner.path / "summary.md").read_text()
    assert runner("Fail if values differ", outputs, fail_on="error").returncode == 2
    assert runner("Fail if values differ", outputs, fail_on="never").returncode == 0


SHELL = '$(touch hacked)"; touch hacked; `touch hacked` *'


def test_inputs_are_passed_on_as_they_are(runner):
    """Backends are separated by spaces or lines, arguments by lines; shell syntax in them runs nothing."""
    recorded = runner.path / "arguments.txt"
    (runner.path / "bin" / "filch").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {recorded}\n')

    runner("Compare", model=SHELL, backends="eager\n;touch  hacked *", arguments=f"--tolerance\n1e-3\n\n{SHELL}\n")

    *arguments, option, page, end, model = recorded.read_text().splitlines()
    backends = [item for name in ("eager", ";touch", "hacked", "*") for item in ("--backend", name)]
    assert arguments == ["check", *backends, "--tolerance", "1e-3", SHELL]
    assert (option, Path(page).name, end, model) == ("--output", "report.html", "--", SHELL)
    assert not list(runner.path.rglob("hacked"))


@pytest.mark.parametrize(
    ("chosen", "requirement"), [("onnxruntime-gpu", f"{ROOT}[onnxruntime-gpu]"), ("none", str(ROOT))]
)
def test_filch_is_installed_with_the_chosen_onnx_runtime(runner, chosen, requirement):
    """With `none`, the job has installed one."""
    assert runner("Install Filch", onnxruntime=chosen).returncode == 0
    assert (runner.path / "pip.txt").read_text().splitlines() == ["-m", "pip", "install", requirement]


def test_an_unknown_onnx_runtime_is_refused(runner):
    """Nothing is installed."""
    assert runner("Install Filch", onnxruntime="onnxruntime; touch hacked").returncode == 2
    assert not (runner.path / "pip.txt").exists() and not (runner.path / "hacked").exists()
