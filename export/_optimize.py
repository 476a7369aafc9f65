"""The exporter's own optimisations, with the module calls followed through them."""

from dataclasses import replace

import torch

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
    return follow_changes(replace(program, model=shipped.model))
