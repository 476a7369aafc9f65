"""The onnxscript optimizations of torch's exporter, as passes."""

from functools import cache
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass
from onnxscript import optimizer, rewriter
from onnxscript.rewriter import onnx_fusions

from filch.steal.private import _onnxscript
from filch.steal.private._names import PrivateNameError

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
        return rewriter.rewrite(program.model, _default_rules())


class _RuleOfOperator(rewriter.RewriteRule):
    """A rule that is tried only at nodes of the operator with which its pattern ends.

    onnxscript 0.7 tries each rule at each node, and it reads the whole graph each time for those of several outputs.
    """

    def __init__(self, rule: rewriter.RewriteRule, domain: str, op_type: str) -> None:
        vars(self).update(vars(rule))
        self._operator = domain, op_type

    def try_rewrite(self, model: ir.Model, graph_or_function: Any, node: ir.Node, **options: Any) -> Any:
        if (node.domain, node.op_type) != self._operator:
            return None
        return super().try_rewrite(model, graph_or_function, node, **options)


@cache
def _default_rules() -> list[rewriter.RewriteRule] | None:
    """Return onnxscript's default rules; None, which stands for them, where it has other internals."""
    try:
        return [_quick(rule) for rule in _onnxscript.DEFAULT_REWRITE_RULES]
    except (AttributeError, LookupError, PrivateNameError, TypeError):
        return None


def _quick(rule: rewriter.RewriteRule) -> rewriter.RewriteRule:
    """Return the same rule for nodes of its operator alone, if its pattern ends with a known one."""
    if type(rule) is not rewriter.RewriteRule:  # it may try something else
        return rule
    operator = rule._matcher.pattern.output_nodes[0].op_identifier()  # noqa: SLF001  nothing public tells
    return rule if operator is None else _RuleOfOperator(rule, *operator[:2])


def fuse_operators(program: Program) -> Program:
    """Fuse nodes into operators of later opsets (normalizations, rotary embeddings, attention)."""
    with quiet():
        onnx_fusions.fuse(program.model)
    return program


LIFT_CONSTANTS = LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)  # including scalars
