"""Final gradients of several processes: scaled by a common factor, and of tied parameters."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

from filch.compare import diff, record_reference
from filch.steal import steal_forward

OPTIONS = {"submodules": True, "gradients": True, "parameters": True}


@pytest.mark.parametrize(
    ("factors", "max_norm", "first", "scaled"),
    [
        ({}, 0.1, None, False),
        ({"2.weight": 2}, 0.1, "2.weight#0.GF", True),  # changes the norm, and by it all others
        ({"2.weight": 2}, 1e6, "2.weight#0.GF", False),
        (dict.fromkeys(("0.weight", "0.bias", "2.weight", "2.bias"), 2), 1e6, "0.weight#0.GF", True),
    ],
    ids=["right", "one summed and clipped", "one summed", "all summed"],
)
def test_a_gradient_is_named_before_those_that_clipping_has_scaled(tmp_path, factors, max_norm, first, scaled):
    """The factor that most gradients have in common is reported."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(6, 4)
    gradients = torch.autograd.grad(model(x).square().mean(), [*model.parameters()])  # as averaged over the ranks
    for name, rows in {"reference": x, "run.0": x[:3], "run.1": x[3:]}.items():
        model.zero_grad()
        with steal_forward(model, dump_file=tmp_path / f"{name}.onnx", **OPTIONS):
            model(rows).square().mean().backward()
            for (path, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
                parameter.grad = gradient * (1 if name == "reference" else factors.get(path, 1))
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    result = diff(tmp_path / "reference.onnx", f"{tmp_path}/run.*.onnx")
    assert (result.first_divergence and result.first_divergence.key.label) == first
    assert any("times those of one process" in reason for reason in result.reasons) == scaled


@pytest.mark.parametrize("reduced", [True, False])
def test_tied_parameters_of_two_stages_are_compared(tmp_path, reduced):
    """Each stage has another name of the parameter, whose gradient must be the sum of both."""
    torch.manual_seed(0)
    ids, whole = torch.tensor([0, 3, 1]), nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    stages = [nn.Sequential(OrderedDict({str(index): copy.deepcopy(layer)})) for index, layer in enumerate(whole)]
    whole[1].weight = whole[0].weight
    stages[1][0].weight.data = stages[0][0].weight.data.clone()
    record_reference(whole, lambda: whole(ids).square().mean().backward(), tmp_path / "reference.onnx")
    with (
        steal_forward(stages[0], dump_file=tmp_path / "run.0.onnx", **OPTIONS),
        steal_forward(stages[1], dump_file=tmp_path / "run.1.onnx", **OPTIONS),
    ):
        sent = stages[0](ids)
        received = sent.detach().requires_grad_()
        stages[1](received).square().mean().backward()
        sent.backward(received.grad)
        own, other = (next(stage.parameters()) for stage in stages)
        own.grad += other.grad
        if reduced:
            other.grad = own.grad.clone()

    result = diff(tmp_path / "reference.onnx", f"{tmp_path}/run.*.onnx")
    assert all(row.judged and row.ratio is not None for row in result.rows if row.key.kind != "P")
    first = result.first_divergence
    assert (first and (first.key.label, first.ranks)) == (None if reduced else ("1.weight#0.GF", (1,)))
