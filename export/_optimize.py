"""The exporter's own optimisations, with the module calls followed through them."""

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir
import torch

from ._graph import Graph
from ._program import Program, follow_changes
from ._quiet import quiet


def optimize(program: Program) -> Program:
    """Optimise a program as `torch.onnx.export` does by default: constants folded, patterns rewritten.

    Args:
        program: unoptimised, as `export` returns it; it stays as it is.

    Returns:
        the optimised program. A value of a module call that is no longer in the graph is resolved as folded to a
        constant, or as fused into the node that is named.
    """
    shipped = torch.onnx.ONNXProgram(program.model.clone(), None)
    with quiet():
        shipped.optimize()
    before = program.graph
    _name_inputs(shipped.model, before.inputs)
    _name_parts(shipped.model, before)
    return follow_changes(replace(program, model=shipped.model))


def _name_inputs(model: ir.Model, names: Sequence[str]) -> None:
    """Give the inputs their names back: one that is a result, too, loses its own to the result's copy."""
    made = {value.name: value for node in model.graph for value in node.outputs}
    for value, name in zip(model.graph.inputs, names, strict=True):
        if value.name != name:
            if name in made:
                made[name].name = f"{name}_copy"
            value.name = name


def _name_parts(model: ir.Model, before: Graph) -> None:
    """Give what was taken out of a sequence its name back: a Split in the sequence's place numbers what it makes."""
    values = {value.name: value for node in model.graph for value in node.outputs}
    for node in before.nodes:
        index = before.producer.get(node.inputs[1]) if node.op == "SequenceAt" else None
        if index is not None and node.outputs[0] not in values:
            part = values.get(f"{node.inputs[0]}_split_{index.attributes.get('value')}")
            if part is not None:
                part.name = node.outputs[0]
