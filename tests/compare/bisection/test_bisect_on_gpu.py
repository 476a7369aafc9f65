"""Bisect errors on a GPU: TF32, and the algorithms of convolutions."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from filch.compare import bisect
from filch.export.backends.onnxruntime._backend import OnnxRuntimeBackend
from support.models.small import recorded
from support.processes.gpu import needs_tf32, ort_cuda

pytestmark = pytest.mark.gpu


def _subject(model, x):
    torch.manual_seed(0)
    return recorded(model, x)


def _names(report):
    return [switch.name for switch in report.culprits]


def test_tf32_is_named():
    """A tolerance that float32 keeps and TF32 does not; with TF32 off, there is no error."""
    needs_tf32()
    torch.manual_seed(0)
    subject = _subject(nn.Linear(1024, 256).eval(), torch.randn(64, 1024))
    report = bisect(*subject, backend=ort_cuda(), tolerance=1e-5)
    assert _names(report) == ["tf32"], report
    assert bisect(*subject, backend=ort_cuda(tf32=False), tolerance=1e-5).close


@dataclass(frozen=True)
class WrongAlgorithm(OnnxRuntimeBackend):
    """ONNX Runtime with a wrong result unless cuDNN's heuristics choose the algorithm."""

    def run(self, compiled, inputs, watch=()):
        values = super().run(compiled, inputs, watch)
        options = compiled.handle.session.get_provider_options()["CUDAExecutionProvider"]
        wrong = options["cudnn_conv_algo_search"] != "HEURISTIC"
        return {name: tensor * 1.01 if wrong else tensor for name, tensor in values.items()}


def test_the_search_for_algorithms_is_named():
    """The fault is planted; the setting that removes it is the one that reaches ONNX Runtime."""
    torch.manual_seed(0)
    subject = _subject(nn.Conv2d(8, 8, 3).eval(), torch.randn(1, 8, 10, 10))
    clean = ort_cuda(tf32=False)
    assert bisect(*subject, backend=clean).close
    report = bisect(*subject, backend=WrongAlgorithm(**vars(clean)))
    assert _names(report) == ["search_space"], report
