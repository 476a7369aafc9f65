"""The onnxscript optimizations of torch's exporter, as passes."""

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer, rewriter
from onnxscript.rewriter import onnx_fusions

from ..common._quiet import quiet


class FoldConstantPass(ir.passes.InPlacePass):
    """Folds nodes that do not depend on the inputs, and infers shapes."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """See `onnx_ir.passes.PassBase.call`."""
        with quiet():
            return optimizer.fold_constants_ir(model, onnx_shape_inference=True)


class SubgraphRewritePass(ir.passes.InPlacePass):
    """Applies onnxscript's rewrite rules, and removes unused nodes."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """See `onnx_ir.passes.PassBase.call`."""
        with quiet():
            return ir.passes.PassResult(rewriter.rewrite(model), modified=True)


class FuseOperatorPass(ir.passes.InPlacePass):
    """Fuses nodes into operators of later opsets (normalizations, rotary embeddings, attention)."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """See `onnx_ir.passes.PassBase.call`."""
        with quiet():
            return ir.passes.PassResult(model, modified=bool(onnx_fusions.fuse(model)))


class LiftConstantsToInitializersPass(common.LiftConstantsToInitializersPass):
    """Turns each constant into an initializer, including scalars."""

    def __init__(self) -> None:
        super().__init__(lift_all_constants=True, size_limit=0)
