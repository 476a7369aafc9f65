"""Somebody else's project: with what is installed and fifteen lines, it keeps its model as it is."""

import os

import pytest

from support.processes.forked import run_python
from support.thorough import slow

MODEL = """\
from torch import nn

def build():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
"""
TESTS = """\
import pytest
import torch
from model import build

@pytest.fixture
def model():
    torch.manual_seed(0)
    return build().eval()

@pytest.mark.filch_backends("onnxruntime-cpu")
def test_export(filch, model):
    filch.check(model, torch.ones(2, 8))

def test_golden(filch, model):
    filch.golden("encoder").check(model, torch.ones(2, 8))
"""


@pytest.fixture
def project(tmp_path):
    """Runs pytest in the project, in a process of its own; gives the exit code and what it printed."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_model.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_"))}

    def run(*options):
        plain = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
        done = run_python("-m", "pytest", *plain, *options, cwd=tmp_path, env=environment)
        return done.returncode, done.stdout + done.stderr

    run.path = tmp_path
    return run


@slow
def test_an_outside_project_keeps_its_model_as_it_is(project):
    """Golden creation, a pass, a planted regression that is found and named, and the update that takes it for right."""
    assert len(TESTS.splitlines()) == 15

    code, printed = project("--filch-update", "-k", "golden")
    assert code == 0, printed
    golden = project.path / "tests" / "golden" / "test_model" / "encoder.onnx"
    assert f"stored {golden}" in printed

    code, printed = project()
    assert code == 0 and "2 passed" in printed, printed

    (project.path / "model.py").write_text(MODEL.replace("LayerNorm(16)", "LayerNorm(16, eps=1e-3)"))
    code, printed = project()
    assert code == 1 and "1 failed, 1 passed" in printed, printed
    assert "First: 2#0.O: " in printed, "the module that changed is named"

    code, printed = project("--filch-update", "-k", "golden")
    assert code == 0 and f"changed {golden}: judged 8 of 8 values; 2 differ; the first is 2#0.O" in printed, printed
    code, printed = project("-k", "golden")
    assert code == 0, printed
