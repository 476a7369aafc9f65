"""How long ONNX Runtime takes for each node, by its own profile."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import onnxruntime as ort

from ._run import run_options

_RUNS = 5
_KERNEL = "_kernel_time"


def seconds_of(session: ort.InferenceSession, feeds: Mapping[str, ort.OrtValue]) -> dict[str, float]:
    """The seconds that each node takes, by its name: the median of some runs after a first one that warms up.

    Args:
        session: was made with `enable_profiling`; it does not profile any more afterwards.
        feeds: its inputs by name.
    """
    names = [entry.name for entry in session.get_outputs()]
    with run_options() as options:
        for _ in range(_RUNS + 1):
            session.run_with_ort_values(names, feeds, options)
    path = Path(session.end_profiling())
    taken: dict[str, list[int]] = {}
    for event in json.loads(path.read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            taken.setdefault(event["name"].removesuffix(_KERNEL), []).append(event["dur"])  # microseconds
    path.unlink()
    return {name: median(found[len(found) // (_RUNS + 1) :]) / 1e6 for name, found in taken.items()}
