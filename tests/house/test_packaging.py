"""What is installed is what stands in the folders, beside any user's own files and wherever Python is started."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest

import filch
from support.thorough import slow

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("steal", "export", "compare")
OFFLINE = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
TOP = ("__init__.py", "__main__.py", "py.typed")  # of the package `filch`, which is the repository's own folder
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')(sys.argv[2])"
# Where the package and its rooms are, without torch, which takes seconds to import.
WHERE = """\
from importlib.util import find_spec
from pathlib import Path
import filch
rooms = [Path(find_spec(f"filch.{room}").origin).parents[1] for room in ("steal", "export", "compare")]
print(*{Path(filch.__file__).parent, *rooms}, filch.__version__)
"""


def _run(*command, cwd, python=sys.executable, **variables):
    done = subprocess.run(
        [python, *map(str, command)], cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(folder):
    """The files below a folder, as those who install them see them."""
    return {
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
    }


def _clone(folder):
    """A copy of what is installed, as setuptools leaves its `build` and `egg-info` beside the sources."""
    for name in ROOMS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*TOP, "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel: sources to sdist to wheel, without a network."""
    folder = tmp_path_factory.mktemp("packaging")
    sources, made = _clone(folder / "sources"), folder / "made"
    made.mkdir()
    (sources / "tests").mkdir()
    (sources / "tests" / "test_it.py").write_text("")  # in no wheel
    _run("-c", BUILD, "sdist", made, cwd=sources)
    (sdist,) = made.glob("*.tar.gz")
    _run("-m", "pip", "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", made, sdist, cwd=folder)
    (wheel,) = made.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder into which the wheel is installed."""
    site = tmp_path_factory.mktemp("site")
    _run("-m", "pip", "install", *OFFLINE, "--target", site, wheel, cwd=site)
    return site


@pytest.fixture(scope="module")
def interpreters(wheel, tmp_path_factory):
    """By how Filch is installed there, a Python with nothing else but what this one has, and where Filch lies."""
    folder = tmp_path_factory.mktemp("environments")
    _run("-c", BUILD, "editable", folder, cwd=(sources := _clone(folder / "sources")))
    (editable,) = folder.glob("*.whl")
    made = {}
    for name, unpacked in (("wheel", wheel), ("editable", editable)):
        venv.create(folder / name, symlinks=os.name != "nt")
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / name)}))
        shutil.unpack_archive(unpacked, site, "zip")
        others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        (site / "others.pth").write_text("\n".join(others))
        python = Path(sysconfig.get_path("scripts", vars={"base": str(folder / name)})) / Path(sys.executable).name
        made[name] = (python, sources if name == "editable" else site / "filch")
    return made


@slow
def test_the_wheel_holds_every_file(site):
    """A sub-package that pyproject.toml does not list works in an editable install, and nowhere else."""
    rooms = {f"{room}/{file}" for room in ROOMS for file in _files(ROOT / room)}
    assert _files(site / "filch") == {*TOP, *rooms}


@slow
def test_the_wheel_takes_no_name_but_ours(site):
    """A top-level `export` or `compare` would shadow what users call so themselves."""
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"filch", "bin"}


@pytest.mark.parametrize("installed", ["wheel", "editable"])
@pytest.mark.parametrize("start", ["elsewhere", "in a clone", "above a clone"])
@pytest.mark.parametrize("how", ["script", "command"])
def test_filch_is_whole_wherever_python_is_started(interpreters, tmp_path, installed, start, how):
    """Above a clone that is called `filch`, Python finds the clone first: then all of it is the clone's."""
    python, expected = interpreters[installed]
    cwd = tmp_path
    if start != "elsewhere":
        clone = _clone(tmp_path / "filch")
        cwd, expected = (tmp_path, clone) if start == "above a clone" else (clone, expected)
    (cwd / "script.py").write_text(WHERE)
    printed = _run(*(["script.py"] if how == "script" else ["-c", WHERE]), cwd=cwd, python=python)
    assert printed.split() == [str(expected), filch.__version__]


@slow
def test_a_users_own_files_stay_theirs(site, tmp_path):
    """A script beside an own `export.py`, `compare.py` and `steal.py` gets its own and ours."""
    for room in ROOMS:
        (tmp_path / f"{room}.py").write_text("mine = True\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import steal, export, compare\n"
        "import filch, filch.steal, filch.export, filch.compare\n"
        "assert steal.mine and export.mine and compare.mine\n"
        "print(filch.steal.__file__, filch.export.__file__, filch.compare.__file__, sep='\\n')\n"
        "print(filch.Dump, filch.export.export, filch.compare.compare)\n"
    )
    printed = _run(script, cwd=tmp_path, PYTHONPATH=str(site)).splitlines()
    assert printed[:3] == [str(site / "filch" / room / "__init__.py") for room in ROOMS]


def test_the_command_is_installed(site, tmp_path):
    """`filch` is there, and answers."""
    (ours,) = distributions(name="filch", path=[str(site)])
    assert ours.entry_points.select(group="console_scripts")["filch"].value == "filch.compare.__main__:main"
    assert "Usage" in _run(site / "bin" / "filch", "--help", cwd=tmp_path, PYTHONPATH=str(site))


@pytest.mark.parametrize("command", [("-m", "filch"), ("-m", "filch.compare")], ids=" ".join)
def test_the_command_says_its_version(site, tmp_path, command):
    """As a module of Python, too; the version is the wheel's."""
    (ours,) = distributions(name="filch", path=[str(site)])
    assert _run(*command, "--version", cwd=tmp_path, PYTHONPATH=str(site)).split()[:2] == ["filch", ours.version]


def test_the_plugin_is_installed(site):
    """Pytest finds it by its entry point."""
    (ours,) = distributions(name="filch", path=[str(site)])
    assert ours.entry_points.select(group="pytest11")["filch"].value == "filch.compare.testing._plugin"


def test_the_licence_is_in_the_wheel(site):
    """The licence goes where the code goes."""
    (ours,) = distributions(name="filch", path=[str(site)])
    assert ours.metadata["License-Expression"] == "Apache-2.0"
    assert "The Filch authors" in ours.read_text("licenses/LICENSE")
