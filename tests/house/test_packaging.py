"""What is installed from a wheel is what stands in the folders, beside any user's own files."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("steal", "export", "compare")
BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def _run(*command, cwd, **variables):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(folder):
    return {
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which Filch is installed: sources to sdist to wheel to there, without a network."""
    folder = tmp_path_factory.mktemp("packaging")
    sources, made, site = folder / "sources", folder / "made", folder / "site"
    for name in ROOMS:  # a copy, as setuptools leaves its `build` and `egg-info` beside the sources
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    made.mkdir()
    _run("-c", BUILD_SDIST, made, cwd=sources)
    (sdist,) = made.glob("*.tar.gz")
    offline = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    _run("-m", "pip", "wheel", *offline, "--no-build-isolation", "--wheel-dir", made, sdist, cwd=folder)
    (wheel,) = made.glob("*.whl")
    _run("-m", "pip", "install", *offline, "--target", site, wheel, cwd=folder)
    return site


@pytest.mark.parametrize("room", ROOMS)
def test_the_wheel_holds_every_file(site, room):
    """A sub-package that pyproject.toml does not list works in an editable install, and nowhere else."""
    assert _files(site / "filch" / room) == _files(ROOT / room)


@pytest.mark.parametrize("room", ROOMS)
def test_the_wheel_is_typed(site, room):
    """Type checkers believe the annotations of an installed package where a `py.typed` stands beside it."""
    assert (site / "filch" / room / "py.typed").is_file()


def test_the_wheel_takes_no_name_but_ours(site):
    """A top-level `export` or `compare` would shadow what users call so themselves."""
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"filch", "bin"}
    assert not (site / "filch" / "__init__.py").exists(), "filch is a namespace: the mapping needs it to be one"


def test_a_users_own_files_stay_theirs(site, tmp_path):
    """A script beside an own `export.py`, `compare.py` and `steal.py` gets its own and ours."""
    for room in ROOMS:
        (tmp_path / f"{room}.py").write_text("mine = True\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import steal, export, compare\n"
        "import filch.steal, filch.export, filch.compare\n"
        "assert steal.mine and export.mine and compare.mine\n"
        "print(filch.steal.__file__, filch.export.__file__, filch.compare.__file__, sep='\\n')\n"
        "print(filch.steal.Dump, filch.export.export, filch.compare.compare)\n"
    )
    printed = _run(script, cwd=tmp_path, PYTHONPATH=str(site)).splitlines()
    assert printed[:3] == [str(site / "filch" / room / "__init__.py") for room in ROOMS]


def test_the_command_is_installed(site, tmp_path):
    """`filch` is there, and answers."""
    (ours,) = distributions(name="filch", path=[str(site)])
    assert ours.entry_points.select(group="console_scripts")["filch"].value == "filch.compare.__main__:main"
    assert "Usage" in _run(site / "bin" / "filch", "--help", cwd=tmp_path, PYTHONPATH=str(site))


def test_the_plugin_is_installed(site):
    """Pytest finds it by its entry point."""
    (ours,) = distributions(name="filch", path=[str(site)])
    assert ours.entry_points.select(group="pytest11")["filch"].value == "filch.compare.testing._plugin"


def test_the_licence_is_in_the_wheel(site):
    """The licence goes where the code goes."""
    (ours,) = distributions(name="filch", path=[str(site)])
    assert ours.metadata["License-Expression"] == "Apache-2.0"
    assert "The Filch authors" in ours.read_text("licenses/LICENSE")
