"""The package requires what it imports, and no runtime; the recipe for conda-forge requires the same."""

import ast
import hashlib
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import filch
from filch.export.common._onnxruntime import OLDEST
from support.thorough import slow

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("steal", "export", "compare")
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT, BUILD = CONFIGURATION["project"], CONFIGURATION["build-system"]
PLATFORMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")]
EXTRAS = PROJECT["optional-dependencies"]
RECIPE = ROOT / "conda" / "recipe.yaml"
ON_CONDA_FORGE = {"torch": "pytorch"}  # where names differ
# Extras, and libraries of what users give.
OPTIONAL = {"onnxruntime", "openvino", "pytest", "safetensors", "transformers"}


def _names(requirements):
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def _imported(folder):
    """The top-level packages that the files of a folder import, anywhere in them."""
    trees = [ast.parse(file.read_text("utf-8")) for file in (ROOT / folder).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"filch"}


def test_no_runtime_is_installed_without_being_asked_for():
    """ONNX Runtime's distributions overwrite one another, so only the extras that are called so require one."""
    assert not [name for name in _names(PROJECT["dependencies"]) if name.startswith("onnxruntime")]
    required = {extra for extra in EXTRAS if any(name.startswith("onnxruntime") for name in _names(EXTRAS[extra]))}
    assert required == {"onnxruntime", "onnxruntime-gpu"}


@pytest.mark.parametrize("platform", PLATFORMS, ids="-".join)
def test_the_extra_installs_one_runtime_on_each_platform(platform):
    """The GPU wheel where it exists, and elsewhere that for the CPU."""
    environment = dict(zip(("sys_platform", "platform_machine"), platform, strict=True))
    requirements = [Requirement(text) for text in EXTRAS["onnxruntime-gpu"]]
    (chosen,) = [one.name for one in requirements if one.marker is None or one.marker.evaluate(environment)]
    has_gpu_wheel = platform in (("linux", "x86_64"), ("win32", "AMD64"))
    assert chosen == ("onnxruntime-gpu" if has_gpu_wheel else "onnxruntime")


@pytest.mark.parametrize("extra", ["onnxruntime", "onnxruntime-gpu"])
def test_the_extras_require_no_older_version_than_is_accepted(extra):
    """An older runtime that was there before is accepted, although the tests don't run with it."""
    (specifier,) = {Requirement(text).specifier for text in EXTRAS[extra]}
    (lowest,) = {item.version for item in specifier}
    assert tuple(map(int, lowest.split("."))) >= OLDEST


@slow
def test_what_is_imported_is_required():
    """A package that happens to be there because another one needs it may be gone tomorrow."""
    distributions = packages_distributions()
    required = _names(PROJECT["dependencies"])
    undeclared = {
        package
        for package in set.union(*map(_imported, ROOMS)) - OPTIONAL
        if required.isdisjoint(map(canonicalize_name, distributions.get(package, ())))
    }
    # Parts of the interfaces of onnx (protobuf), jinja2 and torch, which choose the versions that fit.
    assert undeclared == {"google", "markupsafe", "sympy"}


STEAL_ALONE = """\
import sys
import tempfile
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

allowed, waiting = set(), ["torch", "numpy", "onnx"]
while waiting:
    name = canonicalize_name(waiting.pop())
    if name not in allowed:
        allowed.add(name)
        needed = map(Requirement, requires(name) or ())
        waiting += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
allowed.add("filch")
distributions = packages_distributions()
hidden = {name for name, owners in distributions.items() if allowed.isdisjoint(map(canonicalize_name, owners))}
for name in [name for name in sys.modules if name.partition(".")[0] == "packaging"]:
    del sys.modules[name]

class Without:  # as if the packages were not there: for torch, which looks for some, this is no error
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)

import torch
from torch import nn
from filch import Capture, restore, steal_forward
from filch.steal import describe, recover, steal_append, string_type

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
x = torch.randn(2, 4)
folder = tempfile.mkdtemp()
everything = dict(submodules=True, operators=True, parameters=True, gradients=True, watch="nonfinite")
with steal_forward(model, **everything) as capture:
    model(x).sum().backward()
assert isinstance(capture, Capture)
with steal_forward(model, submodules=True, compress=True, dump_file=folder + "/dump.onnx"):
    expected = model(x)
    steal_append("mine", {"half": x.bfloat16()})
assert torch.equal(restore(folder + "/dump.onnx")["", 0, "O"], expected)
assert torch.equal(restore(folder + "/dump.onnx")["mine", 0, "V"]["half"], x.bfloat16())
print(describe(x), string_type(x), len(capture))
try:
    import filch.export
except ModuleNotFoundError as error:
    print(error)
"""


@slow
def test_steal_needs_torch_numpy_and_onnx_alone():
    """A training machine records and restores with these three, and what they require; all else is hidden here."""
    done = subprocess.run([sys.executable, "-c", STEAL_ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "No module named 'onnx_ir'", "what the other rooms need is hidden"


def _as_on_conda_forge(requirements):
    parsed = map(Requirement, requirements)
    return sorted(f"{ON_CONDA_FORGE.get(one.name, one.name)} {one.specifier}" for one in parsed)


@pytest.fixture(scope="module")
def recipe():
    return yaml.safe_load(RECIPE.read_text("utf-8"))


def test_the_recipe_requires_what_the_wheel_requires(recipe):
    """The same packages and versions, by conda-forge's names, at run time and for the build."""
    python, *others = recipe["requirements"]["run"]
    assert sorted(others) == _as_on_conda_forge(PROJECT["dependencies"])
    oldest = recipe["context"]["python_min"]
    assert (python, PROJECT["requires-python"]) == ("python >=${{ python_min }}", f">={oldest}")
    assert {*_as_on_conda_forge(BUILD["requires"])} < {*recipe["requirements"]["host"]}


def test_the_recipe_requires_no_runtime_but_its_version(recipe):
    """Where a runtime is installed, its version is one that the extras accept."""
    constraints = recipe["requirements"]["run_constraints"]
    assert sorted(constraints) == _as_on_conda_forge([*EXTRAS["onnxruntime"], *EXTRAS["openvino"]])


def test_the_recipe_describes_this_package(recipe):
    """The version, the command, the licence and the summary are those of the wheel."""
    assert recipe["context"]["version"] == filch.__version__
    scripts = [f"{name} = {function}" for name, function in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])
    assert (ROOT / "conda" / recipe["source"]["path"]).resolve() == ROOT


def test_the_recipe_of_a_release_names_its_source(recipe, tmp_path):
    """The release workflow replaces the clone by the sdist and its hash, and nothing else."""
    sdist = tmp_path / f"filch-{filch.__version__}.tar.gz"
    sdist.write_bytes(b"sources")
    command = [sys.executable, ROOT / "tools" / "conda_recipe.py", sdist]
    released = yaml.safe_load(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    source = released.pop("source")
    assert source["sha256"] == hashlib.sha256(b"sources").hexdigest()
    assert source["url"].endswith("/v${{ version }}/filch-${{ version }}.tar.gz")
    assert released == {name: value for name, value in recipe.items() if name != "source"}
