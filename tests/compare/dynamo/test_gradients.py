"""Gradients of a compiled model against those of the same model in eager PyTorch."""

import pytest
import torch
from torch import nn

from filch.compare import CompareError, compare_gradients
from support.models.small import module_of
from support.processes.compilers import needs_compiler
from support.thorough import slow


@pytest.fixture
def model():
    # Its backward pass has an operation that its forward pass lacks: the sign of the input of abs.
    return module_of(
        lambda self, x: self.second(self.norm(self.first(x)).abs()),
        first=nn.Linear(8, 8),
        norm=nn.BatchNorm1d(8),
        second=nn.Linear(8, 4),
    )


def _squared(result):
    return result.square().sum()


@slow
@needs_compiler
def test_clean_gradients_are_close_and_the_model_is_left_alone(model):
    """Every parameter has a row, backward kernels have modules, and buffers and gradients are unchanged."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = compare_gradients(model, (torch.randn(5, 8),), loss=_squared)
    assert report.close, report
    gradients = {row.value: row for row in report.rows if row.op == "gradient"}
    assert set(gradients) == {f"{name}.grad" for name, _ in model.named_parameters()}
    assert all(row.status == "same" for row in gradients.values())
    assert {row.module for row in report.rows if row.node.startswith("cpp_fused")} >= {"norm"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.gpu
@needs_compiler
def test_gradients_on_a_device_are_close_and_a_wrong_one_is_found(model, monkeypatch):
    """The kernels of the backward pass are Triton's there."""
    from torch._inductor import lowering

    model, x = model.cuda(), torch.randn(5, 8, device="cuda")
    clean = compare_gradients(model, (x,), loss=_squared)
    assert clean.close, clean
    assert sum(row.op == "gradient" for row in clean.rows) == len(list(model.parameters()))
    assert any(row.node.startswith("triton_") for row in clean.rows)

    torch._dynamo.reset()  # noqa: SLF001  torch documents it
    sign = torch.ops.aten.sign.default
    right = lowering.lowerings[sign]
    monkeypatch.setitem(lowering.lowerings, sign, lambda x: lowering.mul(right(x), 1.01))
    first = compare_gradients(model, (x,), loss=_squared).first_divergence
    assert first is not None and "sign" in first.operators and first.node.startswith("triton_")


@slow
@needs_compiler
def test_a_wrong_backward_lowering_is_found_in_its_kernel(model, monkeypatch):
    """The lowering of sign is too large: forward is right, and a backward kernel is the first divergence."""
    from torch._inductor import lowering

    sign = torch.ops.aten.sign.default
    right = lowering.lowerings[sign]
    monkeypatch.setitem(lowering.lowerings, sign, lambda x: lowering.mul(right(x), 1.01))

    report = compare_gradients(model, (torch.randn(5, 8),), loss=_squared)

    first = report.first_divergence
    assert "sign" in first.operators
    assert first.node.startswith("cpp_fused")
    assert not any(row.diverged for row in report.rows if row.stage == "exported")
    wrong = {row.value for row in report.rows if row.op == "gradient" and row.diverged}
    assert "first.weight.grad" in wrong
    assert not wrong & {"second.weight.grad", "second.bias.grad"}


@slow
@needs_compiler
def test_what_ends_in_a_norm_has_gradients_to_compare():
    """The sum of a norm's outputs is compared with its rounding level; a dropout draws the same numbers twice."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.25), nn.LayerNorm(16))

    report = compare_gradients(model, (torch.randn(3, 8),))

    assert report.close, report
    assert all(row.difference.snr > 80 for row in report.rows if row.op == "gradient")
    assert {row.module for row in report.rows if row.op == "gradient"} >= {"0.weight", "0.bias"}
    assert report.random
    assert any("after its operations were decomposed" in note for note in report.notes)


@slow
@needs_compiler
def test_what_the_backward_pass_is_given_keeps_its_strides():
    """BERT's pooler reads the first token of each sequence: a strided slice, whose copy would be contiguous."""
    model = module_of(lambda self, x: self.pool(self.norm(x)[:, 0]).tanh(), norm=nn.LayerNorm(8), pool=nn.Linear(8, 8))
    report = compare_gradients(model, (torch.randn(2, 5, 8),), loss=_squared)

    assert report.close, report


def test_other_compilers_gradients_are_compared_too(model):
    """Without kernels, forward operators and gradients are compared with eager PyTorch."""
    report = compare_gradients(model, (torch.randn(5, 8),), inner="aot_eager")
    assert report.close, report
    assert sum(row.op == "gradient" for row in report.rows) == len(list(model.parameters()))


def test_a_model_without_gradients_is_refused(model):
    """A comparison of nothing is not close."""
    with pytest.raises(CompareError, match="no gradient reaches a parameter or an argument"):
        compare_gradients(model.requires_grad_(requires_grad=False), (torch.randn(5, 8),))


@slow
def test_the_report_draws_forward_and_backward_as_one_graph():
    """Every row is at its node, and equal names of both passes are made distinct."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))

    report = compare_gradients(model, (torch.randn(3, 4),))

    for stage, graph in report.graphs.items():
        rows = {(row.node, row.value) for row in report.rows if row.stage == stage}
        made = {(node.name, value) for node in graph.nodes for value in node.outputs}
        assert rows == made if stage == "compiled" else rows < made  # nothing of the backward pass runs node by node
        nodes = [node.name for node in graph.nodes]
        assert len(set(nodes)) == len(nodes)
    assert report.graph.source_graph is not None
    exported = {node.name for node in report.graph.source_graph.nodes}
    assert {name for node in report.graph.nodes for name in node.origins} <= exported
    assert any("backward" in node.name for node in report.graph.nodes)
    assert len([name for name in report.graph.constants if "parameters" in name]) == 6, "weights are no inputs"
    assert not any("parameters" in name for name in report.graph.inputs)


@slow
@needs_compiler
@pytest.mark.parametrize("tolerance", [None, "default"])
def test_gradients_that_cancel_are_close(tolerance):
    """The sum of a batch norm is 0, whatever its input: the kernels and eager PyTorch compute other rounding errors."""
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
    report = compare_gradients(model, (torch.randn(32, 16),), loss=torch.sum, tolerance=tolerance)
    assert report.close, report
    assert any("rounding of what was summed" in row.reason for row in report.rows)
