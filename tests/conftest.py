"""Settings of every test: no network, one thread in each process, and a reason where there is no GPU."""

import functools
import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers reads it when it is imported, which is later than this
# The processes that share out the tests keep all cores busy; more threads in each wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Exporting creates many objects that live long: with Python's thresholds, 8 % of its time goes to looking for garbage.
gc.set_threshold(100_000, 20, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU, where there is none; torch is imported only to answer that.

    What takes longest comes first: files are shared out in this order, and the last ones should keep nobody waiting.
    """
    slow = ("exporting", "house", "dump")
    items.sort(key=lambda item: [folder not in item.path.parts for folder in slow])
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if torch.cuda.is_available():
        return
    reason = f"needs a CUDA device, and torch {torch.__version__} sees none: torch.cuda.is_available() is False"
    for item in wanting:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def exports_are_quick() -> Iterator[None]:
    """Leave out what torch repeats in each export."""
    from support.models.exports import quick_exports

    with quick_exports():
        yield


@pytest.fixture(scope="session", autouse=True)
def kernels_are_linked_quickly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Link with gold: Inductor links each kernel with libtorch, for which GNU ld takes a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        if gold := shutil.which("ld.gold"):
            folder = tmp_path_factory.mktemp("linker")
            (folder / "ld").symlink_to(gold)
            patch.setenv("COMPILER_PATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session", autouse=True)
def installed_extensions_are_listed_once() -> Iterator[None]:
    """List the entry points of a group once: to read those of all installed packages takes 2 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("filch.export.common._extensions.entry_points", functools.cache(entry_points))
        yield


@pytest.fixture
def forked_repros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the script of a repro in a forked process; those of tests/compare/repro are run by a new interpreter."""
    from support.processes.forked import run_python

    def run(command: list[str], *, cwd: Path, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        return run_python(*command[2:], cwd=cwd, env=env)

    replaced = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("filch.compare.repro._folder.subprocess", replaced)


@pytest.fixture(scope="session")
def unfreezes() -> Iterator[None]:
    """Let the garbage collector visit all objects again at the end."""
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def older_objects_are_frozen(unfreezes: None) -> None:
    """Keep the garbage collector from visiting what torch and earlier files have in memory: up to 0.4 s each time."""
    gc.collect()
    gc.freeze()
