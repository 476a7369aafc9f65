"""`Float64Program`: an exported program run in float64."""

import torch
from torch import nn

from filch.compare.runs._evaluation import Float64Evaluator
from filch.export import export

DOUBLE = torch.float64


class Casts(nn.Module):
    """Contains casts, typed constants, division of integers, and a branch with a cast."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("steps", torch.arange(8))

    def forward(self, x, mask):
        third = self.steps / 3
        y = self.linear(x.to(torch.float16).to(x.dtype) if x.dtype == torch.float16 else x) + third
        y = y.to(torch.float32) * torch.full((8,), 0.5, dtype=torch.float32)
        y = torch.where(mask, y, torch.zeros((), dtype=torch.float32))
        return torch.cond(mask.any(), self.one, self.other, (y,))

    @staticmethod
    def one(y):
        return y.float().exp().to(torch.float32)

    @staticmethod
    def other(y):
        return y.sin()


def test_every_floating_point_value_is_float64_and_no_integer_changes():
    """The result equals the formula computed in float64 with the float32 weights."""
    torch.manual_seed(0)
    model, x, mask = Casts().eval(), torch.randn(4, 8), torch.rand(4, 8) < 0.8
    program = export(model, (x, mask))
    original = program.original
    assert original is not None
    inputs = dict(zip(program.graph.inputs, (x, mask), strict=True))

    run = Float64Evaluator(program).of(inputs, original.names, keep=False)
    found = {name: run.get(name) for name in original.names}
    values = {name: item.value for name, item in found.items() if item is not None}

    assert values.keys() == {*original.names}

    assert {value.dtype for value in values.values()} <= {DOUBLE, torch.int64, torch.bool}
    linear = x.to(DOUBLE) @ model.linear.weight.to(DOUBLE).T + model.linear.bias.to(DOUBLE)
    y = torch.where(mask, (linear + torch.arange(8).to(DOUBLE) / 3) * 0.5, 0.0)
    last = values[program.graph.outputs[0]]
    torch.testing.assert_close(last, y.exp(), rtol=1e-14, atol=1e-14)
    assert torch.get_default_dtype() == torch.float32


def test_a_node_is_computed_from_given_values():
    """Nodes between it and the given values run, too; `read` can change the values that it reads."""
    program = export(nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid()), (torch.ones(2),))
    assert program.original is not None
    relu, tanh, sigmoid = program.original.names
    inputs, two = {program.graph.inputs[0]: torch.ones(2)}, torch.tensor([2.0, 2.0])
    values = Float64Evaluator(program).isolated(inputs, {relu: two}.get)

    alone, further = values.get(tanh), values.get(sigmoid)
    changed = program.original.float64.compute(
        tanh, inputs, {relu: two}, lambda name, value, _start: value * 3 if name == relu else value
    )

    assert alone is not None and further is not None
    assert alone.value.tolist() == two.to(DOUBLE).tanh().tolist()
    assert further.value.tolist() == two.to(DOUBLE).tanh().sigmoid().tolist()
    assert changed.tolist() == torch.tensor([6.0, 6.0], dtype=DOUBLE).tanh().tolist()


def test_one_node_of_the_graph_is_computed_in_float64():
    """The ONNX reference evaluator computes it."""
    program = export(nn.LayerNorm(4), (torch.ones(2, 4),))
    assert program.original is not None
    node = program.original.graph.nodes[-1]
    x = torch.randn(2, 4, dtype=DOUBLE)
    reads = {
        name: x if name not in program.original.graph.constants else program.original.constant(name)
        for name in node.reads
    }

    (result,) = program.original.evaluate(node.name, {name: value.to(DOUBLE) for name, value in reads.items()}).values()

    assert result.dtype == DOUBLE
    torch.testing.assert_close(result, nn.functional.layer_norm(x, (4,)), rtol=1e-12, atol=1e-12)
