"""Passes by name; each is imported on first use."""

from collections.abc import Sequence
from typing import Any

from onnx_ir.passes import common

from .._errors import PassError
from ..common._extensions import Extensions
from ._pass import Pass, as_pass

_BUILT_IN = {
    "BFloat16Pass": "._precision:BFLOAT16",
    "Float16Pass": "._precision:FLOAT16",
    "FoldConstantPass": "._onnxscript:fold_constants",
    "FuseOperatorPass": "._onnxscript:fuse_operators",
    "Int4Pass": "._precision:INT4",
    "LiftConstantsToInitializersPass": "._onnxscript:LIFT_CONSTANTS",
    "OrtAllPass": "._onnxruntime:ALL",
    "OrtBasicPass": "._onnxruntime:BASIC",
    "OrtExtendedPass": "._onnxruntime:EXTENDED",
    "OrtLayoutPass": "._onnxruntime:LAYOUT",
    "SubgraphRewritePass": "._onnxscript:rewrite_subgraphs",
}
# The passes of the installed version of onnx-ir.
_COMMON = {name: f"{common.__name__}:{name}" for name in common.__all__ if name.endswith("Pass")}
_PASSES = Extensions("pass", __package__, _COMMON | _BUILT_IN, PassError, extras={}, plural="passes")
# The passes of torch.onnx.ONNXProgram.optimize with onnxscript 0.7, in its order. It removes unused nodes again after
# rewriting, which already removes them, and skips the second round if the first changed nothing.
_DEFAULT = (
    "InlinePass",
    *("FoldConstantPass", "SubgraphRewritePass") * 2,
    "RemoveUnusedNodesPass",
    "LiftConstantsToInitializersPass",
    "LiftSubgraphInitializersToMainGraphPass",
    "DeduplicateInitializersPass",
    "CommonSubexpressionEliminationPass",
    "OutputFixPass",
    "NameFixPass",
    "FuseOperatorPass",
)


def pass_names() -> list[str]:
    """Return the names that `get_pass` accepts."""
    return _PASSES.names()


def default_passes() -> list[str]:
    """Return the names of the default passes of `optimize`, in their order."""
    return list(_DEFAULT)


def get_pass(name: str) -> Pass:
    """Make a pass.

    Args:
        name: one of `pass_names()`.

    Raises:
        PassError: there is no pass of this name, a library is missing, or the object is no pass.
    """
    return as_pass(_PASSES.find(name), name)


def find_passes(passes: str | Sequence[Any]) -> list[Pass]:
    """Convert names and objects to passes."""
    items = [passes] if isinstance(passes, str) else passes
    return [get_pass(item) if isinstance(item, str) else as_pass(item) for item in items]
