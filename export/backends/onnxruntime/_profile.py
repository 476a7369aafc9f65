"""Measure the time of each node with ONNX Runtime's profiler."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import onnxruntime as ort

from ._run import run_options

_RUNS = 5
_KERNEL = "_kernel_time"


def node_seconds(session: ort.InferenceSession, feeds: Mapping[str, ort.OrtValue]) -> dict[str, float]:
    """Return the seconds of each node, by name: the median of some runs after a warm-up run.

    Args:
        session: a session created with `enable_profiling`, which this ends.
        feeds: its inputs by name.
    """
    names = [entry.name for entry in session.get_outputs()]
    with run_options() as options:
        for _ in range(_RUNS + 1):
            session.run_with_ort_values(names, feeds, options)
    path = Path(session.end_profiling())
    durations: dict[str, list[int]] = {}
    for event in json.loads(path.read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            durations.setdefault(event["name"].removesuffix(_KERNEL), []).append(event["dur"])  # microseconds
    path.unlink()
    return {name: median(times[len(times) // (_RUNS + 1) :]) / 1e6 for name, times in durations.items()}
