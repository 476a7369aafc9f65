"""Settings of every test: no network, one thread in each process, and a reason where there is no GPU."""

import copy
import functools
import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers reads it when it is imported, which is later than this
# The processes that share out the tests keep all cores busy; more threads in each wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU, where there is none; torch is imported only to answer that.

    What takes longest comes first: files are shared out in this order, and the last ones should keep nobody waiting.
    """
    items.sort(key=lambda item: ("house" not in item.path.parts, "dump" not in item.path.parts))
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
