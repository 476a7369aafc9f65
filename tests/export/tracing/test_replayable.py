"""Tests of `record_run`."""

from __future__ import annotations

import torch
from torch import nn

from filch.export import record_run
from filch.export.tracing._replayable import TensorReference
from support.models.small import module_of


def in_place():
    """Writes to a buffer and through a view, and calls a module twice."""

    def forward(self, x):
        self.cache.copy_(self.layer(x))
        y = self.layer(self.cache)
        y[:, 1:] += 1
        return y * torch.ones(4)

    return module_of(forward, layer=nn.Linear(4, 4), cache=torch.zeros(2, 4))


def test_each_call_has_its_arguments_and_results():
    """Tensors are handles: those of weights, inputs and constants are sources, all others are results of calls."""
    model = in_place()
    values: dict[str, torch.Tensor] = {}
    run = record_run(model, (torch.randn(2, 4),), {}, lambda name, tensor: values.setdefault(name, tensor.clone()))
    known = {*run.sources}
    for call in run.calls:
        assert {*call.reads} <= known
        known |= {handle for handle, _ in call.results}
        assert all(name in run.graph.producer for _, name in call.results)
    assert {"x", "cache", "layer.weight", "layer.bias"} <= {*run.sources.values()}
    assert values.keys() >= {*run.graph.producer}
    references = [item for call in run.calls for item in call.args if isinstance(item, TensorReference)]
    assert {reference.handle for reference in references} <= known


def test_a_tensor_that_is_given_twice_is_two_inputs():
    """Both of its values are visited."""
    x, visited = torch.ones(3), []
    run = record_run(module_of(lambda self, x, y: x + y), (x, x), {}, lambda name, _: visited.append(name))
    assert run.graph.inputs == ("x", "y")
    assert {"x", "y"} <= {*visited}


def test_what_modules_returned_is_known():
    """A second call has a label of its own, and the model's buffers are restored."""
    model = in_place()
    run = record_run(model, (torch.randn(2, 4),), {}, lambda *_: None)
    assert [output.module for output in run.outputs] == ["layer", "layer@1", ""]
    assert run.outputs[-1].value in run.graph.outputs
    assert not model.cache.any()
