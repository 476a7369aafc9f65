"""Time limits of backends: every step that takes too long ends with an error."""

import contextlib
import threading
import time
from dataclasses import dataclass

import onnx
import onnx_ir as ir
import pytest
import torch

from filch.compare import CompareInstrument, compare, keep_precise
from filch.compare.cli._app import main
from filch.export import BackendError, ExportError, Program, load_program
from filch.export.backends import Isolates, Observes, Switches, get_backend
from filch.export.backends._limited import limit_backend
from filch.export.common import _time_limit
from filch.export.common._time_limit import TimeLimit, default_limit, end_process_if_stuck, limited, limited_steps
from filch.steal import restore
from support.models.small import capture_of, module_of, onnx_model
from support.processes.forked import run_python


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Return the path of the model's dump."""
    path = tmp_path_factory.mktemp("limit") / "dump.onnx"
    # The model whose dump the endless program is compared with.
    model = module_of(lambda self, x: x.sin())
    capture_of(model, torch.ones(4), dump_file=path)
    return path


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """Return the path of an ONNX file with a Loop that never ends."""
    path = tmp_path_factory.mktemp("endless") / "endless.onnx"
    text = """(float[4] x) => (float[4] y) <bool true = {1}> { y = Loop(, true, x) <
        body = step (int64 number, bool more, float[4] state) => (bool again, float[4] next) {
            again = Identity(more) next = Sin(state)
        }>
    }"""
    onnx.save(onnx_model(text, 18, ir_version=9), path)
    return path


def _watchers():
    return [thread for thread in threading.enumerate() if thread.name == "filch-time-limit"]


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "reference"])
def test_an_endless_loop_is_ended(dump, endless, backend):
    """The error says what took too long, what its limit was and how to raise it; no thread is left."""
    message = rf"'{backend}' took longer than 1 seconds to run the program, its limit; limit=10 \(--limit 10\)"
    with pytest.raises(BackendError, match=message):
        compare(dump, endless, backend=backend, limit=1)
    assert not _watchers()


def test_an_endless_loop_is_ended_in_every_kind_of_run(endless):
    """Plain, observed and isolated runs are limited, each part by itself."""
    program = load_program(endless)
    backend = limit_backend(get_backend("onnxruntime-cpu"))
    made = backend.compile(program, optimize=False)
    inputs = {"x": torch.ones(4)}
    for run in (
        lambda: backend.observe(made, inputs, buffer=2**20),
        lambda: backend.isolate(made, inputs, lambda _: None, buffer=2**20),
        lambda: backend.run(made, inputs, ["y"]),
    ):
        with TimeLimit(0.3), pytest.raises(BackendError, match="took longer"):
            list(run())


def test_an_expired_step_leaves_no_interruption_behind():
    """In Python 3.11, a cancelled interruption let a thread with a trace function hang in the next function call."""
    script = """
import sys
from filch.export import BackendError
from filch.export.common._time_limit import TimeLimit, limited
with TimeLimit(0.1):
    try:
        with limited("x", "to run"):
            while True:
                pass
    except BackendError:
        pass
sys.settrace(lambda *event: None)
(lambda: print("called"))()
"""
    assert run_python("-c", script).stdout == "called\n"


def test_the_command_exits_with_status_2(dump, endless, monkeypatch, capsys):
    """The exit status distinguishes an error from a difference."""
    monkeypatch.setattr("sys.argv", ["filch", "compare", str(dump), str(endless), "--limit", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("filch: backend 'onnxruntime-cpu' took longer than 1 seconds")


@dataclass
class Slow:
    """The reference backend, with a delay before each run.

    Attributes:
        wait: the function that delays the run.
    """

    wait: object
    name: str = "slow"
    stages: tuple = ("exported",)

    def compile(self, program, *, optimize):
        """Compile without a delay."""
        return get_backend("reference").compile(program, optimize=optimize)

    def run(self, compiled, inputs, watch=()):
        """Wait, and suppress the exceptions that a backend's library may suppress."""
        with contextlib.suppress(Exception):  # as a backend's library may
            self.wait()
        return get_backend("reference").run(compiled, inputs, watch)


def _program():
    return Program(ir.from_proto(onnx_model("(float[4] x) => (float[4] y) { y = Sin(x) }", 18)))


def _spin():
    while True:
        time.sleep(0.001)


def test_python_code_is_interrupted(dump):
    """An `except Exception` around it does not keep it running."""
    with pytest.raises(BackendError, match=r"'slow' took longer than 0\.2 seconds"):
        compare(dump, _program(), backend=Slow(_spin), limit=0.2)
    assert not _watchers()


def test_functions_that_run_several_programs_are_limited(dump):
    """`keep_precise` and `CompareInstrument` apply the limit to each run."""
    with pytest.raises(BackendError, match=r"'slow' took longer than 0\.2 seconds"):
        keep_precise(dump, _program(), to="float16", backend=Slow(_spin), limit=0.2)
    judge = CompareInstrument(dump, backend=Slow(_spin), limit=0.2)
    with pytest.raises(BackendError, match=r"'slow' took longer than 0\.2 seconds"):
        judge.before_all_passes(_program())


def test_native_code_that_is_too_slow_raises_once_it_returns(dump):
    """Code that can't be interrupted still fails its limit."""
    with pytest.raises(BackendError, match=r"'slow' took longer than 0\.1 seconds"):
        compare(dump, _program(), backend=Slow(lambda: time.sleep(0.5)), limit=0.1)


def test_native_code_that_does_not_return_ends_the_process(dump, monkeypatch):
    """The process ends with the message of the error."""
    messages = []
    monkeypatch.setattr(_time_limit, "_STUCK", 0.1)
    monkeypatch.setattr(_time_limit, "_end_process", messages.append)
    with end_process_if_stuck(), pytest.raises(BackendError, match="took longer"):
        compare(dump, _program(), backend=Slow(lambda: time.sleep(1.0)), limit=0.1)
    assert len(messages) == 1
    assert messages[0].startswith("backend 'slow' took longer than 0.1 seconds")


def test_a_run_within_its_limit_is_not_interrupted(dump):
    """The report passes, and no thread is left."""
    assert compare(dump, _program(), limit=60).close
    assert compare(dump, _program(), limit=float("inf")).close
    assert not _watchers()


def test_the_consumer_of_limited_steps_is_not_limited():
    """Only computing each item is limited."""
    with TimeLimit(1):
        for _ in limited_steps([1], "a list", "to give its next item"):
            time.sleep(1.2)


def test_a_nested_step_does_not_count_for_the_outer_step():
    """The time for computing a reference value does not count for the backend that requests it."""
    with TimeLimit(2), limited("a backend", "to run"):
        for _ in range(3):
            with limited("a reference", "to be computed"):
                time.sleep(0.8)


def test_a_nested_step_raises_its_own_error():
    """Its error is not attributed to the backend."""

    def wait():
        with limited("a reference", "to be computed", error=ExportError):
            time.sleep(0.4)

    with TimeLimit(0.1), limited("a backend", "to run", times=30), pytest.raises(ExportError, match="a reference took"):
        wait()


def test_a_limited_backend_keeps_its_capabilities():
    """Comparisons check capabilities with `isinstance`."""
    backend = limit_backend(get_backend("onnxruntime-cpu"))
    assert isinstance(backend, Observes)
    assert isinstance(backend, Isolates)
    assert isinstance(backend, Switches)
    assert not isinstance(limit_backend(get_backend("reference")), Observes)
    assert limit_backend(backend) is backend
    assert backend.options == get_backend("onnxruntime-cpu").options


def test_the_default_grows_with_the_weights():
    """It is 60 seconds plus 60 for each GB of weights."""
    program = _program()
    assert default_limit(program.model) == 60.0
    weight = ir.Value(name="w", const_value=ir.LazyTensor(lambda: None, ir.DataType.FLOAT, ir.Shape([500_000_000])))
    program.model.graph.initializers["w"] = weight
    assert default_limit(program.model) == pytest.approx(180.0)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), True, "60"])
def test_a_limit_is_a_positive_number(dump, limit):
    """Any other value is an error."""
    with pytest.raises(BackendError, match="seconds above 0"):
        compare(restore(dump), _program(), limit=limit)
