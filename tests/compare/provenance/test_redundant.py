"""Nodes that change nothing, in graphs of PyTorch as in those of ONNX."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from filch.compare.provenance._redundant import RedundantNodes
from filch.export.graph._from_fx import graph_from_fx


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
