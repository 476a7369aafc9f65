"""Backends of other packages: that of docs/guides/write_a_backend.md works, and a broken one is one sentence."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from filch.export import BackendError
from filch.export.backends import get_backend
from support.processes.forked import run_python
from support.thorough import slow

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "write_a_backend.md").read_text()
USE = """
import filch_tiny, torch
from filch.compare import compare
from filch.export import export
from filch.steal import steal_forward

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
x = torch.randn(3, 4)
with torch.no_grad(), steal_forward(model, submodules=True) as capture:
    model(x)
program = export(model, (x,))
clean = compare(capture, program, backend="tiny")
print(clean.backend, clean.close, clean.undisturbed, {row.status for row in clean.rows})
filch_tiny.OPERATORS["Relu"] = torch.nn.functional.leaky_relu
wrong = compare(capture, program, backend="tiny")
print(wrong.close, wrong.first_divergence.op, wrong.first_divergence.module)
"""


def block(language, holding):
    """The fenced block of docs/guides/write_a_backend.md that holds some text."""
    (found,) = (text for text in re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL) if holding in text)
    return found


@slow
def test_the_backend_in_the_docs_is_installed_and_finds_its_own_fault(tmp_path):
    """A package of the two blocks, as they are written; clean it is silent, and with a wrong ReLU that is found."""
    (tmp_path / "filch_tiny.py").write_text(block("python", "class Tiny"))
    (tmp_path / "pyproject.toml").write_text(block("toml", "filch.backends"))
    site = tmp_path / "site"
    offline = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--no-build-isolation")
    install = [sys.executable, "-m", "pip", "install", *offline, "--target", str(site), str(tmp_path)]
    subprocess.run(install, check=True, capture_output=True, text=True)

    (site / "use.py").write_text(USE)
    done = run_python(site / "use.py", cwd=site)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["tiny True True {'same'}", "False Relu 1"]


def test_the_backend_in_the_docs_passes_the_tests_in_the_docs(tmp_path):
    """As they are written, in a project of its own."""
    (tmp_path / "filch_tiny.py").write_text(block("python", "class Tiny"))
    (tmp_path / "test_filch_tiny.py").write_text(block("python", "class TestTiny"))

    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", cwd=tmp_path)

    assert done.returncode == 0, done.stdout
    assert re.search(r"^1\d passed, \d skipped", done.stdout, re.MULTILINE), done.stdout


def test_the_backend_in_the_docs_is_about_forty_lines():
    """As is promised."""
    assert len(block("python", "class Tiny").splitlines()) <= 45


class Complete:
    name = "foreign"
    stages: Any = ("exported",)

    def compile(self, program, *, optimize):
        pass

    def run(self, compiled, inputs, watch=()):
        pass


class Incomplete(Complete):
    run = None


class Strange(Complete):
    stages = ("compiling",)


class Nothing:
    pass


@pytest.fixture
def installed(monkeypatch):
    """Lets entry points be found that no package has."""
    module = ModuleType("foreign_backends")
    module.__dict__.update(Complete=Complete, Incomplete=Incomplete, Strange=Strange, Nothing=Nothing)
    monkeypatch.setitem(sys.modules, "foreign_backends", module)
    there: list[EntryPoint] = []

    def found(*, group, name=None):
        return [entry for entry in there if entry.group == group and name in (None, entry.name)]

    monkeypatch.setattr("filch.export.common._extensions.entry_points", found)
    return lambda name, value: there.append(EntryPoint(name, value, "filch.backends"))


def test_a_backend_of_another_package_is_made_by_its_name(installed):
    """Whatever class it is."""
    installed("foreign", "foreign_backends:Complete")

    assert isinstance(get_backend("foreign"), Complete)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "broken",
            "no_such_module:Backend",
            r"backend 'broken' of no_such_module .* can't be loaded: .*No module named",
        ),
        ("broken", "foreign_backends:Lost", r"backend 'broken' of foreign_backends .* has no attribute 'Lost'"),
        ("poor", "foreign_backends:Incomplete", r"backend 'poor', a Incomplete, has no `run`: a backend has `name`"),
        ("poor", "foreign_backends:Nothing", r"has no `name` and no `stages` and no `compile` and no `run`"),
        ("strange", "foreign_backends:Strange", r"has `stages` \('compiling',\): it is a tuple of 'exported' and"),
        ("eager", "foreign_backends:Complete", r"backend 'eager' is provided by filch itself and foreign_backends"),
    ],
)
def test_a_broken_backend_of_another_package_is_one_sentence(installed, name, value, message):
    """It can't be imported, lacks something, or has a name that is taken."""
    installed(name, value)

    with pytest.raises(BackendError, match=message) as caught:
        get_backend(name)
    assert "\n" not in str(caught.value)


def test_two_packages_with_one_name_are_told_apart(installed):
    """Which of them would be taken is nobody's business."""
    installed("twice", "foreign_backends:Complete")
    installed("twice", "other_backends:Whole")

    with pytest.raises(BackendError, match="is provided by foreign_backends and other_backends: rename or uninstall"):
        get_backend("twice")
