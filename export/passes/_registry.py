"""Passes by name; each is imported when it is asked for."""

from collections.abc import Sequence
from typing import Any

from onnx_ir.passes import common

from .._errors import PassError
from ..common._extensions import Extensions
from ._pass import Pass, as_pass

_OWN = {
    "BFloat16Pass": "._precision:bfloat16",
    "Float16Pass": "._precision:float16",
    "FoldConstantPass": "._onnxscript:FoldConstantPass",
    "FuseOperatorPass": "._onnxscript:FuseOperatorPass",
    "Int4Pass": "._precision:int4",
    "LiftConstantsToInitializersPass": "._onnxscript:LiftConstantsToInitializersPass",
    "OrtAllPass": "._onnxruntime:ALL",
    "OrtBasicPass": "._onnxruntime:BASIC",
    "OrtExtendedPass": "._onnxruntime:EXTENDED",
    "OrtLayoutPass": "._onnxruntime:LAYOUT",
    "SubgraphRewritePass": "._onnxscript:SubgraphRewritePass",
}
# Which of these there are is up to the installed onnx-ir.
_COMMON = {name: f"{common.__name__}:{name}" for name in common.__all__ if name.endswith("Pass")}
_PASSES = Extensions("pass", __package__, _COMMON | _OWN, PassError, extras={}, plural="passes")
# What torch.onnx.ONNXProgram.optimize runs, in its order, with onnxscript 0.7. There, what is unused is looked for
# after the rewriting once more, which itself removes what it leaves unused; and a second round is left out if the first
# one changed nothing.
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
    """The names that `get_pass` knows."""
    return _PASSES.names()


def default_passes() -> list[str]:
    """The names of the passes that `optimize` runs if it is not told otherwise, in their order."""
    return list(_DEFAULT)


def get_pass(name: str) -> Pass:
    """Make a pass.

    Args:
        name: one of `pass_names()`.

    Raises:
        PassError: there is none of this name, a library is missing, or it is no pass.
    """
    return as_pass(_PASSES.find(name), name)


def find_passes(given: Sequence[Any]) -> list[Pass]:
    """Passes, of which some are given by name."""
    listed = [given] if isinstance(given, str) else given
    return [get_pass(item) if isinstance(item, str) else as_pass(item) for item in listed]
