"""The onnxscript optimizations of torch's exporter, as passes."""

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass
from onnxscript import optimizer, rewriter
from onnxscript.rewriter import onnx_fusions

from ..common._quiet import quiet
from ..program._program import Program


def fold_constants(program: Program) -> Program:
    """Fold nodes that do not depend on the inputs, and infer shapes."""
    with quiet():
        optimizer.fold_constants_ir(program.model, onnx_shape_inference=True)
    return program


def rewrite_subgraphs(program: Program) -> ir.Model:
    """Apply onnxscript's rewrite rules, and remove unused nodes."""
    with quiet():
        return rewriter.rewrite(program.model)


def fuse_operators(program: Program) -> Program:
    """Fuse nodes into operators of later opsets (normalizations, rotary embeddings, attention)."""
    with quiet():
        onnx_fusions.fuse(program.model)
    return program


LIFT_CONSTANTS = LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)  # including scalars
