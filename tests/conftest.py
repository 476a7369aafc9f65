"""Settings of every test: no network, one thread in each process, and a reason where there is no GPU."""

import copy
import functools
import gc
import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers reads it when it is imported, which is later than this
# The processes that share out the tests keep all cores busy; more threads in each wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Exporting creates many objects that live long: with Python's thresholds, 8 % of its time goes to looking for garbage.
gc.set_threshold(20_000, 20, 50)


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
def torchlib_is_read_once() -> Iterator[None]:
    """Give each export of the tests a copy of one registry.

    `torch.onnx.export` (torch 2.13) translates onnxscript's 497 functions anew in each call: two thirds of what it
    takes to export a small model.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = functools.cache(ONNXRegistry.from_torchlib)

    def copied(*args: Any, **kwargs: Any) -> ONNXRegistry:
        registry = copy.copy(read(*args, **kwargs))
        registry.functions = {target: [*found] for target, found in registry.functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(copied))
        yield


@pytest.fixture(scope="session", autouse=True)
def composite_operators_are_listed_once() -> Iterator[None]:
    """List the composite operators once, and override them only for the devices of the tests.

    To decompose a program, torch 2.13 asks its dispatcher for all operators 58 times, and registers some 300 of them
    for 21 kinds of devices: over half of what is left of exporting a small model.
    """
    import torch

    if not torch.__version__.startswith("2.13."):  # what is replaced is private, and another version may lack it
        yield
        return
    from torch._export import utils
    from torch.export import decomp_utils, exported_program

    list_operators = utils._collect_all_valid_cia_ops  # noqa: SLF001  as all of this, it is not public

    @functools.cache
    def listed(registered: frozenset[str]) -> Any:  # a test may register an operator
        return list_operators()

    def listed_now() -> Any:
        key = "CompositeImplicitAutograd"
        return listed(frozenset(torch._C._dispatch_get_registrations_for_dispatch_key(key)))  # noqa: SLF001

    with pytest.MonkeyPatch.context() as patch:
        for module in (utils, decomp_utils, exported_program):
            patch.setattr(module, "_collect_all_valid_cia_ops", listed_now)
        for name in ("_AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE", "_BACKEND_KEYS_TO_OVERRIDE"):
            keys = [key for key in getattr(exported_program, name) if key.name.endswith(("CPU", "CUDA", "Meta"))]
            patch.setattr(exported_program, name, keys)
        yield


@pytest.fixture(scope="session", autouse=True)
def installed_extensions_are_listed_once() -> Iterator[None]:
    """List the entry points of a group once: to read those of all installed packages takes 2 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("filch.export.common._extensions.entry_points", functools.cache(entry_points))
        yield


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
