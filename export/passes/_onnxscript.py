"""What torch's exporter has onnxscript do, as passes."""

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer, rewriter
from onnxscript.rewriter import onnx_fusions

from ..common._quiet import quiet


class FoldConstantPass(ir.passes.InPlacePass):
    """Computes what does not depend on the inputs, and infers shapes on the way."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """See `onnx_ir.passes.PassBase.call`."""
        with quiet():
            return optimizer.fold_constants_ir(model, onnx_shape_inference=True)


class SubgraphRewritePass(ir.passes.InPlacePass):
    """Applies onnxscript's rules, and removes what they leave unused."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """See `onnx_ir.passes.PassBase.call`."""
        with quiet():
            return ir.passes.PassResult(rewriter.rewrite(model), modified=True)


class FuseOperatorPass(ir.passes.InPlacePass):
    """Makes one operator of what later opsets have one for (normalisations, rotary embeddings, attention)."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """See `onnx_ir.passes.PassBase.call`."""
        with quiet():
            return ir.passes.PassResult(model, modified=bool(onnx_fusions.fuse(model)))


class LiftConstantsToInitializersPass(common.LiftConstantsToInitializersPass):
    """Makes an initializer of each constant, scalars among them."""

    def __init__(self) -> None:
        super().__init__(lift_all_constants=True, size_limit=0)
