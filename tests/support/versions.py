"""Which versions of other packages are installed."""

from importlib import metadata
from pathlib import Path

import onnxruntime
import pytest

_PINS = Path(__file__).parents[2] / "constraints.txt"


def is_pinned(*names: str) -> bool:
    """Return whether packages have the versions of constraints.txt, with which docs/evidence.md was measured."""
    pins = dict(line.split("==") for line in _PINS.read_text("utf-8").splitlines() if "==" in line)
    return all(metadata.version(name).partition("+")[0] == pins[name] for name in names)


def since(major: int, minor: int, reason: str) -> pytest.MarkDecorator:
    """Return a mark of tests that older versions of ONNX Runtime can't pass."""
    installed = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    return pytest.mark.skipif(installed < (major, minor), reason=f"ONNX Runtime {major}.{minor}: {reason}")
