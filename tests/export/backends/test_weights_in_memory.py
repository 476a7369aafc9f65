"""ONNX Runtime is given the weights of a program in memory, instead of a copy of them in a file."""

import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import export
from filch.export.backends import get_backend
from support.models.small import capture_of, module_of

ort = pytest.importorskip("onnxruntime")


def large():
    """A model with 20 MB of weights, which are read directly and transposed."""
    return module_of(
        lambda self, x, index: (self.first(x) + self.embedding(index)) @ self.second,
        first=nn.Linear(2048, 1024),
        second=nn.Parameter(torch.randn(1024, 2048) / 32),
        embedding=nn.Embedding(1000, 1024),
    )


def _inputs():
    return torch.randn(3, 2048, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 5, 999])


def test_unoptimized_sessions_share_the_memory_of_the_parameters():
    """The exported stage neither writes nor copies weights."""
    torch.manual_seed(0)
    model = large()
    compiled = get_backend("onnxruntime-cpu").compile(export(model, _inputs()), optimize=False)
    given = compiled.handle.given
    assert given["first.weight"].data_ptr() == model.first.weight.data_ptr()
    assert given["second"].data_ptr() == model.second.data_ptr()
    folder = compiled.handle.path.parent
    assert sum(file.stat().st_blocks for file in folder.iterdir()) * 512 < 100_000


def test_both_stages_of_a_large_model_are_as_those_of_plain_onnx_runtime(tmp_path):
    """Weights given in memory and a session without prepacked weights change no value."""
    torch.manual_seed(0)
    model, inputs = large(), _inputs()
    program = export(model, inputs)
    program.save(tmp_path / "model.onnx")
    ir.save(program.model, tmp_path / "plain.onnx", external_data="plain.data")
    feeds = dict(zip(program.graph.inputs, inputs, strict=True))
    backend = get_backend("onnxruntime-cpu")
    for optimize in (False, True):
        options = ort.SessionOptions()
        if not optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(tmp_path / "plain.onnx", options, providers=["CPUExecutionProvider"])
        expected = session.run(None, {name: tensor.numpy() for name, tensor in feeds.items()})[0]
        compiled = backend.compile(program, optimize=optimize)
        (output,) = backend.run(compiled, feeds).values()
        assert torch.equal(output, torch.from_numpy(expected))
        for buffer in (2**20, 2**28):
            observed = dict(backend.observe(compiled, feeds, buffer=buffer))
            assert torch.equal(observed[program.graph.outputs[0]], output)


def test_a_wrong_weight_of_a_large_model_is_found():
    """The weights that sessions are given are those of the graph, not those of the model."""
    torch.manual_seed(0)
    model, inputs = large(), _inputs()
    program = export(model, inputs)
    capture = capture_of(model, *inputs, submodules=True)
    assert compare(capture, program, buffer=2**20).close
    wrong = model.first.weight.detach() * 1.01
    program.model.graph.initializers["first.weight"].const_value = ir.tensor(wrong.numpy(), name="first.weight")
    report = compare(capture, program, buffer=2**20)
    assert not report.close
    assert report.first_divergence is not None
    assert "first" in str(report.first_divergence.module)
