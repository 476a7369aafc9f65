"""Run a session of ONNX Runtime and leave the results on the device, or measure the time of each node."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import onnxruntime as ort

from ..._errors import BackendError
from ...common._time_limit import stoppable
from .._backend import Values
from .._files import first_line
from ._values import to_ort

OrtValues = Mapping[str, ort.OrtValue]
_PROFILED_RUNS = 5
_KERNEL = "_kernel_time"  # suffix of the events of nodes in a profile
_GRAPH_ID = "gpu_graph_id"  # option of a run: the CUDA graph to record or to replay
_NO_GRAPH = "-1"  # neither recorded nor replayed
_graph_ids = itertools.count(1)


def feeds_of(wanted: Sequence[str], inputs: Values) -> dict[str, ort.OrtValue]:
    """Return the inputs of a session, which are called `wanted`.

    Raises:
        BackendError: an input is missing.
    """
    if missing := [name for name in wanted if name not in inputs]:
        raise BackendError(f"the program's input {missing[0]!r} is missing")
    return {name: to_ort(inputs[name]) for name in wanted}


def run(
    session: ort.InferenceSession, feeds: OrtValues, device: str | None = None, *, replay: bool = False
) -> dict[str, ort.OrtValue]:
    """Run a session and return its results by name.

    Args:
        session: the session.
        feeds: its inputs by name, on any device.
        device: ONNX Runtime's name of the device for the results; None is the CPU.
        replay: whether to run it as a CUDA graph.

    Raises:
        BackendError: running fails.
    """
    names = [entry.name for entry in session.get_outputs()]
    try:
        if device is None:
            with _run_options() as options:
                results = session.run_with_ort_values(names, feeds, options)
        else:
            results = _run_bound(session, feeds, device, replay=replay)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise BackendError(f"ONNX Runtime can't run the program: {first_line(error)}") from error
    return dict(zip(names, results, strict=True))


def node_seconds(session: ort.InferenceSession, feeds: OrtValues) -> dict[str, float]:
    """Return the seconds of each node, by name: the median of some runs after a warm-up run.

    Args:
        session: a session created with `enable_profiling`, which this ends.
        feeds: its inputs by name.
    """
    names = [entry.name for entry in session.get_outputs()]
    with _run_options() as options:
        for _ in range(_PROFILED_RUNS + 1):
            session.run_with_ort_values(names, feeds, options)
    path = Path(session.end_profiling())
    durations: dict[str, list[int]] = {}
    for event in json.loads(path.read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            durations.setdefault(event["name"].removesuffix(_KERNEL), []).append(event["dur"])  # microseconds
    path.unlink()
    return {name: median(times[len(times) // (_PROFILED_RUNS + 1) :]) / 1e6 for name, times in durations.items()}


@contextmanager
def _run_options() -> Iterator[ort.RunOptions]:
    """Yield options of runs that raise an exception when their time limit is exceeded (see `stoppable`)."""
    options = ort.RunOptions()

    def stop() -> None:
        options.terminate = True

    with stoppable(stop):
        yield options


def _run_bound(session: ort.InferenceSession, feeds: OrtValues, device: str, *, replay: bool) -> list[ort.OrtValue]:
    """Run with inputs and outputs on a device; with `replay`, return the outputs of a replayed CUDA graph.

    A session keeps each CUDA graph under its id (by default 0) and replays it with the addresses of the inputs and
    outputs that were bound when it was recorded. So each call records a graph under an id of its own.
    """
    binding = session.io_binding()
    bound = {name: _to_device(value, device) if replay else value for name, value in feeds.items()}
    for name, value in bound.items():
        binding.bind_ortvalue_input(name, value)
    for entry in session.get_outputs():
        binding.bind_output(entry.name, device if entry.type.startswith("tensor") else "cpu")
    with _run_options() as options:
        if replay:
            options.add_run_config_entry(_GRAPH_ID, _NO_GRAPH)
        session.run_with_iobinding(binding, options)
    if replay:  # a CUDA graph always uses the same memory, so the outputs are bound to those of the first run
        for entry, value in zip(session.get_outputs(), binding.get_outputs(), strict=True):
            binding.bind_ortvalue_output(entry.name, value)
        with _run_options() as options:
            options.add_run_config_entry(_GRAPH_ID, str(next(_graph_ids)))
            for _ in ("record", "replay"):
                session.run_with_iobinding(binding, options)
    binding.synchronize_outputs()
    return list(binding.get_outputs())


def _to_device(value: ort.OrtValue, device: str) -> ort.OrtValue:
    """Copy a value to a device, unless it is there."""
    return value if value.device_name() == device else ort.OrtValue.ortvalue_from_numpy(value.numpy(), device, 0)
