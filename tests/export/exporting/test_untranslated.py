"""A model that ONNX can't express is exported as a graph of PyTorch's operations, for backends that run these."""

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.compare._compare_export import compare_export
from filch.compare.models._subject import Subject
from filch.export import BackendError, ExportError, export
from support.models.small import capture_of, module_of
from support.processes.compilers import needs_compiler


class Singular(nn.Module):
    """Computes singular values, for which torch has no translation to ONNX."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return {"values": torch.linalg.svdvals(self.linear(x)).reshape(x.shape[0], -1) * torch.tensor(2.0)}, None


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    return Subject.of(Singular().eval(), torch.randn(2, 6, 6), None)


def test_it_is_refused_if_onnx_is_what_is_asked_for(subject):
    """In one sentence, with the reason."""
    with pytest.raises(ExportError, match=r"torch.onnx can't translate the exported program: .*linalg_svd"):
        subject.export(onnx_only=True)


def test_its_graph_has_the_operations_the_modules_and_the_dtypes(subject):
    """And the lines of the model's code."""
    program = subject.export()

    node = program.graph.nodes[0]
    assert (node.op, node.module, program.graph.values[node.outputs[0]].shape) == ("torch::linear", "linear", (2, 6, 6))
    assert "linalg_svd" in program.untranslated
    assert program.graph.constants[:2] == ("linear.weight", "linear.bias")


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=needs_compiler)])
def test_backends_that_run_pytorch_are_judged(subject, backend):
    """Each value, and a note says why there is no ONNX."""
    report = compare_export(subject.steal(), subject.export(), backend=backend)

    assert report.close and all(row.judged for row in report.rows if row.kind == "output")
    assert report.notes[0].startswith("the graph has PyTorch's operations: torch.onnx can't translate")


def test_what_else_such_a_backend_refuses_is_said_as_it_is(subject):
    """It does run PyTorch's operations, so that another one would not help."""
    with pytest.raises(BackendError, match=r"^backend 'eager' has no attention 'fast'"):
        compare_export(subject.steal(), subject.export(), backend="eager", options={"attention": "fast"})


def test_a_wrong_value_of_it_is_found(subject):
    """By a weight that is not that of the model."""
    other = Subject.of(Singular().eval(), *subject.args, None)

    assert compare_export(subject.steal(), other.export(), backend="eager").outcome == "different"


def test_a_runtime_for_onnx_refuses_it_with_torchs_reason(subject):
    """And says which backends don't."""
    with pytest.raises(BackendError, match=r"linalg_svd.*; compare it on a backend that runs PyTorch's operations"):
        compare_export(subject.steal(), subject.export(), backend="onnxruntime-cpu")


@needs_compiler
def test_inductor_compiles_what_the_exporter_decomposes_to_views_of_prims():
    """`prims.broadcast_in_dim` can't be functionalized."""
    # A variance, which the exporter decomposes to `prims`.
    model = module_of(lambda self, x: x / (torch.var(x, -1, correction=1, keepdim=True) + 1.0)).eval()
    x = torch.randn(4, 3)
    program = export(model, (x,))
    assert any("prims" in str(node.target) for node in program.exported_program.graph.nodes)

    capture = capture_of(model, x)

    assert compare(capture, program, backend="inductor").close
