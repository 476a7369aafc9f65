"""The page of tested versions is what the runs gave, and `filch --version` compares with the same runs."""

import json
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import onnxruntime
import pytest
from packaging.requirements import Requirement

import filch
from filch.compare.cli._versions import version_lines
from filch.steal.private import _versions

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "versions.py"))
DATA = json.loads(TOOL["DATA"].read_text("utf-8"))

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_1"/>
<testcase classname="tests.test_a" name="test_2"><failure message="assert 1 == 2&#10;more">text</failure></testcase>
<testcase classname="tests.test_a" name="test_3"><error message="no such fixture">text</error></testcase>
<testcase classname="tests.test_a" name="test_4"><skipped type="pytest.skip" message="no GPU">text</skipped></testcase>
<testcase classname="tests.test_a" name="test_5"><skipped type="pytest.xfail" message="known">text</skipped></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def runs(monkeypatch):
    """Two runs in place of those that were made."""
    monkeypatch.setattr(_versions, "_runs", lambda: [{"torch": "2.14.0"}, {"torch": "2.9.1", "numpy": "2.1.0"}])


def test_the_page_shows_the_runs(tmp_path, monkeypatch):
    """Neither the data nor the page is changed alone."""
    page = tmp_path / "versions.md"
    page.write_bytes(TOOL["PAGE"].read_bytes())
    monkeypatch.setitem(TOOL["write_page"].__globals__, "PAGE", page)
    TOOL["write_page"](DATA)
    assert page.read_text("utf-8") == TOOL["PAGE"].read_text("utf-8")


def test_each_run_names_its_packages():
    """The sets are those of the page, each with the packages that Filch requires."""
    required = {Requirement(text).name for text in _requirements()}
    assert {*DATA} <= {*TOOL["SETS"]}
    assert [name for name, run in DATA.items() if not required <= {*run["packages"]}] == []


def _requirements():
    return TOOL["tomllib"].loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]


def test_floors_are_the_lowest_versions():
    """Each requirement of pyproject.toml is pinned to what stands after `>=`."""
    floors = TOOL["floors"]().splitlines()
    for requirement in map(Requirement, _requirements()):
        assert f"{requirement.name}{str(requirement.specifier).replace('>', '=')}" in floors
    assert {line.partition("==")[0] for line in floors} >= {"onnxruntime-gpu", "openvino", "pytest", "transformers"}


def test_the_runs_have_the_versions_of_their_sets():
    """The floors ran with the floors, the pinned set with the pins; neither was changed without a new run."""
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    for name, text in (("floors", TOOL["floors"]()), ("pinned", pins)):
        lines = text.lower().replace("onnxruntime-gpu", "onnxruntime").splitlines()
        wanted = dict(line.split("==") for line in lines if "==" in line)
        for package, version in DATA.get(name, {"packages": {}})["packages"].items():
            release = version.partition("+")[0]  # a build for the CPU is of the same release
            assert package == "Python" or f"{release}.0.0".startswith(f"{wanted[package]}."), (name, package)


def test_a_report_of_pytest_is_counted():
    """A test that is expected to fail is no failure and did not pass; an error of a fixture is a failure."""
    failed = {"tests.test_a::test_2": "assert 1 == 2", "tests.test_a::test_3": "no such fixture"}
    assert TOOL["outcome"](REPORT) == {"passed": 1, "expected to fail": 1, "skipped": 1, "failed": failed}


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("version", "newest"),
    [
        ("2.14.0", None),
        ("2.14.0+cpu", None),
        ("2.9.10", None),
        ("2.14.1", "2.14.0"),
        ("2.15.0.dev20260101+cu130", "2.14.0"),
    ],
)
def test_a_version_is_newer_than_all_that_were_tried(version, newest):
    """Numbers are compared as numbers, and the build does not count."""
    assert _versions.tried("torch") == ["2.9.1", "2.14.0"]
    assert _versions.newest_tried("torch", version) == newest


@pytest.mark.usefixtures("runs")
def test_the_command_marks_newer_versions(monkeypatch):
    """In aligned lines; of a package that was never tried, nothing is said."""
    versions = {"torch": "2.15.0", "numpy": "2.1.0", "gguf": "1", "transformers": "5.24.0"}
    monkeypatch.setattr("filch.compare.cli._versions.installed", lambda: versions)
    assert version_lines() == [
        f"filch         {filch.__version__}",
        "torch         2.15.0  newer than any that was tested (2.14.0)",
        "numpy         2.1.0",
        "gguf          1",
        "transformers  5.24.0",
    ]


def test_the_command_imports_none_of_the_packages():
    """It names what is installed, also if that can't be imported, and takes no seconds."""
    code = "import sys; from filch.compare.cli._versions import version_lines; version_lines(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy", "torch", "onnx", "onnxruntime", "transformers"}.isdisjoint(done.stdout.split())


def test_the_versions_in_use_are_those_that_are_installed():
    """Whichever distribution the package is from."""
    installed = _versions.installed()
    assert installed["torch"] == metadata.version("torch")
    assert installed["onnxruntime"] == onnxruntime.__version__
