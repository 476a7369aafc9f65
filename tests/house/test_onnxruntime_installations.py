"""Each way in which ONNX Runtime may be installed: one is used, none or a damaged one is told, and none is replaced."""

import sys

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.compare.cli._app import main
from filch.export import BackendError, ExportError, export, lower, optimize
from filch.export.backends import get_backend
from filch.export.common import _onnxruntime
from support.models.small import capture_of
from support.thorough import slow

BACKENDS = ["onnxruntime-cpu", "onnxruntime-cuda", "onnxruntime-tensorrt"]
NOT_INSTALLED = (
    "needs ONNX Runtime, which is not installed: "
    "pip install 'filch[onnxruntime-gpu]' or pip install 'filch[onnxruntime]'"
)


@pytest.fixture(autouse=True)
def checked_anew():
    """The check runs once in a process, so it forgets before and after each test."""
    _onnxruntime.check_installation.cache_clear()
    yield
    _onnxruntime.check_installation.cache_clear()


@pytest.fixture
def none_installed(monkeypatch):
    """Python finds no `onnxruntime`."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs fake distributions, which contain the same file, into a folder that Python searches first."""
    imported = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "onnxruntime"}
    for name in imported:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    def install(*distributions, source="__version__ = '1.30.0'", record="onnxruntime/__init__.py,,\n"):
        folder = tmp_path / "onnxruntime"
        folder.mkdir()
        if source is not None:
            (folder / "__init__.py").write_text(source)
        for name in distributions:
            metadata = tmp_path / f"{name.replace('-', '_')}-1.30.0.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.30.0\n")
            (metadata / "RECORD").write_text(f"{metadata.name}/METADATA,,\n{record}")
        return folder

    yield install
    sys.modules.pop("onnxruntime", None)  # the fake one


def _problem():
    with pytest.raises(BackendError) as caught:
        get_backend("onnxruntime-cpu")
    return str(caught.value)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_missing_runtime_is_told(none_installed, name):
    """Each backend that needs it says so, and which commands install it."""
    with pytest.raises(BackendError) as caught:
        get_backend(name)
    assert str(caught.value) == f"backend {name!r} {NOT_INSTALLED}"


@pytest.fixture(scope="module")
def program_and_capture():
    """A model whose export has values inside decompositions, which no eager tensor equals."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.Softplus()).eval()
    x = torch.randn(1, 3, 4, 4)
    capture = capture_of(model, x, submodules=True)
    return export(model, (x,)), capture


@pytest.mark.parametrize("to", ["int8", "int4"])
def test_lowering_to_integers_tells_that_the_runtime_is_missing(none_installed, program_and_capture, to):
    """Its quantization tools are part of ONNX Runtime."""
    program, _ = program_and_capture
    with pytest.raises(ExportError) as caught:
        lower(optimize(program), to, calibration=[{"input": torch.ones(1, 3, 4, 4)}])
    assert str(caught.value) == f"lowering to {to} {NOT_INSTALLED}"


@slow
@pytest.mark.parametrize("command", [["demo"], ["check", "filch.compare:tiny_llm"]], ids=" ".join)
def test_the_command_line_tells_that_the_runtime_is_missing(none_installed, command, monkeypatch, capsys):
    """One line and exit code 2: no other backend takes its place."""
    monkeypatch.setattr(sys, "argv", ["filch", *command])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"filch: backend 'onnxruntime-cpu' {NOT_INSTALLED}"


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_other_backends_need_no_runtime(program_and_capture, backend, monkeypatch):
    """The same rows are judged as with ONNX Runtime: onnx.reference computes the values inside decompositions."""
    program, capture = program_and_capture
    expected = compare(capture, program, backend=backend)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    _onnxruntime.check_installation.cache_clear()
    found = compare(capture, program, backend=backend)
    assert [(row.value, row.status) for row in found.rows] == [(row.value, row.status) for row in expected.rows]
    assert found.close and "derived" in {row.evidence for row in found.rows}


def test_a_runtime_of_two_distributions_is_refused(install):
    """Whichever was installed last has replaced files of the other, so neither is what its version says."""
    folder = install("onnxruntime", "onnxruntime-gpu")
    assert _problem() == (
        "backend 'onnxruntime-cpu' needs ONNX Runtime, which is installed more than once: onnxruntime and "
        f"onnxruntime-gpu overwrite each other in {folder}: pip uninstall -y onnxruntime onnxruntime-gpu, then "
        "pip install onnxruntime or pip install onnxruntime-gpu"
    )


@pytest.mark.parametrize("other", ["onnxruntime-openvino", "onnxruntime-directml", "ort-nightly"])
def test_a_distribution_of_another_name_counts(install, other):
    """What a distribution contains decides, not what it is called."""
    install("onnxruntime", other)
    assert f"pip uninstall -y onnxruntime {other}, then pip install onnxruntime or pip install {other}" in _problem()


def test_an_incomplete_runtime_is_told(install, tmp_path, monkeypatch):
    """Uninstalling one of two leaves a folder without modules, which Python imports as an empty package."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    folder = install("onnxruntime-gpu", source=None)
    assert _problem() == (
        f"backend 'onnxruntime-cpu' needs ONNX Runtime, which is incomplete: {folder} has no __init__.py: "
        "pip uninstall -y onnxruntime-gpu, then pip install 'filch[onnxruntime-gpu]' or "
        "pip install 'filch[onnxruntime]'"
    )


def test_a_runtime_that_cannot_be_imported_is_told(install):
    """The reason is the loader's own, such as a library of the system that is missing."""
    install("onnxruntime", source="raise ImportError('libcudart.so.13: cannot open shared object file')")
    reason = "which can't be imported (ImportError: libcudart.so.13: cannot open shared object file): "
    assert f"needs ONNX Runtime, {reason}pip uninstall -y onnxruntime, then pip install 'filch[" in _problem()


@pytest.mark.parametrize(
    ("names", "command"), [((), ""), (("onnxruntime-training",), ": pip install --upgrade onnxruntime-training")]
)
def test_a_runtime_that_is_too_old_is_told(install, names, command):
    """No requirement of Filch keeps it from being there; some of its interfaces are missing."""
    install(*names, source="__version__ = '1.19.2'")
    assert _problem().endswith(f"needs ONNX Runtime, which is too old (1.19.2; at least 1.22 is needed){command}")


@pytest.mark.parametrize(
    ("names", "record"),
    [
        ((), ""),  # a source build on PYTHONPATH
        (("onnxruntime-silicon",), "onnxruntime/__init__.py,,\n"),
        (("onnxruntime-extensions", "onnxruntime-genai"), "onnxruntime_extensions/__init__.py,,\n"),
    ],
)
def test_a_usable_runtime_is_accepted(install, names, record):
    """One without metadata, one distribution, and others of similar names; the tests' own is in another folder."""
    folder = install(*names, record=record)
    _onnxruntime.require_onnxruntime("this test", BackendError)
    assert sys.modules["onnxruntime"].__file__ == str(folder / "__init__.py")


def test_an_installation_during_the_process_is_noticed(none_installed, monkeypatch):
    """A notebook goes on after `pip install`: only success is remembered."""
    _problem()
    monkeypatch.undo()
    assert get_backend("onnxruntime-cpu").name == "onnxruntime-cpu"
