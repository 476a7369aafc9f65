"""Which versions of other packages are installed."""

from importlib import import_module, metadata
from pathlib import Path

import pytest
from packaging.version import Version

_PINS = Path(__file__).parents[2] / "constraints.txt"


def is_pinned(*names: str) -> bool:
    """Return whether packages have the versions of constraints.txt, with which docs/evidence.md was measured."""
    pins = dict(line.split("==") for line in _PINS.read_text("utf-8").splitlines() if "==" in line)
    return all(metadata.version(name).partition("+")[0] == pins[name] for name in names)


def since(package: str, version: str, reason: str) -> pytest.MarkDecorator:
    """Return a mark of tests that can't pass with older versions of a package, because of what these do."""
    installed = import_module(package).__version__.partition("-")[0]  # OpenVINO says more after it
    is_older = Version(installed) < Version(version)
    return pytest.mark.skipif(is_older, reason=f"before {package} {version}, {reason}")
