"""Runs a session of ONNX Runtime, and leaves its results where they were computed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnxruntime as ort

from ..._errors import BackendError
from ...common._time_limit import stoppable
from .._backend import Values
from .._files import first_line
from ._values import to_ort

OrtValues = Mapping[str, ort.OrtValue]
_NO_GRAPH = "-1"  # a run that neither records a CUDA graph nor replays one


def feeds_of(wanted: Sequence[str], inputs: Values) -> dict[str, ort.OrtValue]:
    """What a session takes of `inputs`: the values called `wanted`.

    Raises:
        BackendError: one is missing.
    """
    if missing := [name for name in wanted if name not in inputs]:
        raise BackendError(f"the program takes an input {missing[0]!r} that it was not given")
    return {name: to_ort(inputs[name]) for name in wanted}


def run(
    session: ort.InferenceSession, feeds: OrtValues, device: str | None = None, *, replay: bool = False
) -> dict[str, ort.OrtValue]:
    """A session's results by name.

    Args:
        session: it.
        feeds: what it is given, by name, wherever that is.
        device: where the results are wanted, by ONNX Runtime's name; None is the CPU.
        replay: run it as a CUDA graph.

    Raises:
        BackendError: it can't be run.
    """
    names = [entry.name for entry in session.get_outputs()]
    try:
        with run_options() as options:
            if device is None:
                found = session.run_with_ort_values(names, feeds, options)
            else:
                found = _bound(session, feeds, device, options, replay=replay)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise BackendError(f"ONNX Runtime can't run the program: {first_line(error)}") from error
    return dict(zip(names, found, strict=True))


@contextmanager
def run_options() -> Iterator[ort.RunOptions]:
    """Options of runs that end, with an exception, when their time is up (see `stoppable`)."""
    options = ort.RunOptions()

    def stop() -> None:
        options.terminate = True

    with stoppable(stop):
        yield options


def _bound(
    session: ort.InferenceSession, feeds: OrtValues, device: str, options: ort.RunOptions, *, replay: bool
) -> list[ort.OrtValue]:
    binding = session.io_binding()
    held = {name: _on(value, device) if replay else value for name, value in feeds.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    for entry in session.get_outputs():
        binding.bind_output(entry.name, device if entry.type.startswith("tensor") else "cpu")
    if replay:
        options.add_run_config_entry("gpu_graph_id", _NO_GRAPH)
    session.run_with_iobinding(binding, options)
    if replay:  # a graph reads and writes where it did when it was recorded: what was made now says how large that is
        for entry, value in zip(session.get_outputs(), binding.get_outputs(), strict=True):
            binding.bind_ortvalue_output(entry.name, value)
        for _ in ("record", "replay"):
            session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return list(binding.get_outputs())


def _on(value: ort.OrtValue, device: str) -> ort.OrtValue:
    return value if value.device_name() == device else ort.OrtValue.ortvalue_from_numpy(value.numpy(), device, 0)
