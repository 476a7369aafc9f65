"""Which versions of other packages are installed."""

from importlib import metadata
from pathlib import Path

_PINS = Path(__file__).parents[2] / "constraints.txt"


def is_pinned(*names: str) -> bool:
    """Return whether packages have the versions of constraints.txt, with which docs/evidence.md was measured."""
    pins = dict(line.split("==") for line in _PINS.read_text("utf-8").splitlines() if "==" in line)
    return all(metadata.version(name).partition("+")[0] == pins[name] for name in names)
