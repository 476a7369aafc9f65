"""TensorRT through ONNX Runtime: what is missing is said, and nothing runs in its place."""

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import BackendError, export
from filch.export.backends import get_backend
from support.models.small import capture_of
from support.processes.forked import run_python


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval(), torch.randn(2, 4)
    capture = capture_of(model, x, submodules=True)
    return capture, export(model, (x,))


def test_tensorrt_says_what_is_missing_and_falls_back_to_nothing():
    """In a process of its own, as ONNX Runtime would print; where it is there, this is skipped."""
    code = "from filch.export.backends import get_backend; get_backend('onnxruntime-tensorrt')"
    done = run_python("-c", code)
    if done.returncode == 0:
        pytest.skip("TensorRT is there")

    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert "BackendError: backend 'onnxruntime-tensorrt'" in last
    assert "can't load lib" in last or "needs onnxruntime-gpu" in last


def test_a_session_that_does_not_get_its_provider_is_refused(subject, monkeypatch):
    """ONNX Runtime takes the next one, and only logs it."""
    import onnxruntime as ort

    from filch.export.backends.onnxruntime._backend import OnnxRuntimeBackend

    class Fallen(ort.InferenceSession):
        def get_providers(self):
            return []

    monkeypatch.setattr(ort, "InferenceSession", Fallen)
    backend = OnnxRuntimeBackend("onnxruntime-cpu", "CPUExecutionProvider")

    with pytest.raises(BackendError, match="ONNX Runtime can't start CPUExecutionProvider for this program"):
        backend.compile(subject[1], optimize=False)


@pytest.mark.gpu
def test_tensorrt_runs_where_it_is(subject):
    """Its nodes are whole subgraphs."""
    capture, program = subject
    try:
        backend = get_backend("onnxruntime-tensorrt")
    except BackendError as error:
        pytest.skip(str(error))

    report = compare(capture, program, backend=backend)

    assert {row.stage for row in report.rows} == {"exported", "compiled"}
    assert all(row.judged for row in report.rows if row.kind == "output")
