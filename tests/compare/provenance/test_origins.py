"""Which exported nodes a compiled node is said to compute, and which nodes change nothing."""

from dataclasses import replace

import pytest
import torch
from onnx import numpy_helper
from onnx_ir import serde
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from filch.compare import compare, compiled_graph
from filch.compare.provenance._redundant import RedundantNodes
from filch.export import export
from filch.export.graph._from_fx import graph_from_fx
from support.models.small import capture_of, module_of


def block_module():
    """Two norms with a residual between them, whose loss makes them equal, and a factor of weights alone."""

    def forward(self, x):
        x = x + self.first(normalized(x))
        return self.last(normalized(x) * (self.scale * 0.5 + 1.0))

    return module_of(forward, first=nn.Linear(16, 16), last=nn.Linear(16, 16), scale=nn.Parameter(torch.rand(16) + 0.5))


def normalized(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


@pytest.fixture(scope="module")
def block():
    """Return a capture of the model, and its program."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model, x = block_module().eval().requires_grad_(requires_grad=False), torch.randn(4, 16)
        capture = capture_of(model, x, submodules=True)
    return capture, export(model, (x,))


def lose_residual(node, model):
    """Make the addition return its input: the optimizer removes it, and merges the norms."""
    del node.input[1:]
    node.op_type = "Identity"


def change_factor(node, model):
    """Change the factor of the weights: the optimizer folds it."""
    model.graph.initializer.append(numpy_helper.from_array(torch.tensor(0.6).numpy(), "planted"))
    node.input[1] = "planted"


@pytest.mark.parametrize(("value", "plant"), [("add_1", lose_residual), ("mul_2", change_factor)])
def test_all_that_a_removed_or_folded_node_makes_wrong_names_it(block, value, plant):
    """The compiled nodes that show the error have that node among their origins, and no other node is blamed."""
    capture, program = block
    model = serde.serialize_model(program.model)
    node = next(node for node in model.graph.node if value in node.output)
    plant(node, model)
    report = compare(capture, replace(program, model=serde.deserialize_model(model)), every_node=True)
    blamed = [row for row in report.introduced if row.stage == "compiled"]
    assert blamed
    assert not [row for row in report.introduced if node.name not in (row.node, *row.origins)]
    assert report.first_divergence.node == node.name
    assert not report.explanation.others


def test_origins_of_sound_nodes_are_what_they_compute(block):
    """Removed and folded nodes are origins only where an error begins."""
    capture, program = block
    report = compare(capture, program, every_node=True)
    assert report.close
    drawn = {node.name: node.origins for node in compiled_graph(program).nodes}
    rows = {row.node: row.origins for row in report.rows if row.stage == "compiled" and row.kind != "output"}
    assert rows == {name: drawn[name] for name in rows}


def test_a_cast_of_an_input_has_no_origins():
    """It computes no exported node; the cast of a result holds the value of the result's node."""
    # A sum that ONNX Runtime computes in float32; one cast of the input serves two nodes.
    model = module_of(lambda self, x: self.linear(x) + x, linear=nn.Linear(8, 8))
    graph = compiled_graph(export(model.half().eval(), (torch.randn(2, 8).half(),)))
    origins = {
        node.outputs[0]: [graph.source_graph.producer[graph.source_graph.outputs[0]].name in node.origins, node.origins]
        for node in graph.nodes
        if node.op == "Cast"
    }
    assert origins["InsertedPrecisionFreeCast_x"] == [False, ()]
    assert origins["add"][0]


def redundant(function, *args):
    return RedundantNodes(graph_from_fx(make_fx(function)(*args).graph))


def test_an_operand_that_is_a_number_is_no_input():
    """PyTorch's nodes have numbers among their attributes, and the same input once."""
    found = redundant(lambda x: (1 - (x + 1) * x**2 / 2).relu() * x, torch.ones(3))
    assert found.no_ops == {}
    assert found.duplicates == {}


def test_a_copy_that_is_written_to_is_another_value():
    """What is computed from the copy is not what is computed from the original."""

    def function(x):
        copy = x.clone()
        copy.add_(1)
        return copy.relu(), x.relu()

    assert redundant(function, torch.ones(3)).duplicates == {}
