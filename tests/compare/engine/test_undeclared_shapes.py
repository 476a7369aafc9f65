"""A file need not declare the shapes of its values: a sum is as long as in the run."""

from dataclasses import replace

import pytest
import torch
from onnx_ir import serde
from torch import nn

from filch.compare import compare
from filch.compare.float64._reductions import reduction_length
from filch.export import export
from support.models.small import recorded


@pytest.mark.parametrize("stage", ["exported", "compiled"])
def test_rounding_is_the_same_with_and_without_declared_shapes(stage):
    """Also in the graph that ONNX Runtime makes, whose fused nodes have values that only the exported graph has."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(400, 400), nn.GELU(), nn.Linear(400, 3)).eval(), torch.randn(2, 400)
    capture, program = recorded(model, x, submodules=True)
    bare = serde.serialize_model(program.model)
    del bare.graph.value_info[:]

    declared, undeclared = (
        {row.value: row.float64.rounding for row in compare(capture, one).rows if row.stage == stage}
        for one in (program, replace(program, model=serde.deserialize_model(bare)))
    )

    assert undeclared == declared
    assert all(declared.values())


def test_observed_shapes_count_where_none_or_only_symbols_are_declared():
    """Without them, the length is that of no sum."""
    batch = torch.export.Dim("batch")
    program = export(nn.Linear(400, 3), (torch.randn(2, 400),), dynamic_shapes=({0: batch},))
    graph = program.graph
    (gemm,) = [node for node in graph.nodes if node.op == "Gemm"]

    assert reduction_length(gemm, graph) == 1
    assert reduction_length(gemm, graph, {gemm.inputs[0]: (2, 400)}) == 400
