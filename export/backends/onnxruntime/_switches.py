"""What of ONNX Runtime's work on a program can be left: transformers, rewrite rules, settings."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..._errors import BackendError
from .._backend import Switch
from ._options import CUDA, OrtOptions, is_optimizer

TRANSFORMER, RULE, SETTING = "graph transformer", "rewrite rule", "setting"
_RULE_BASED = re.compile(r"Level\d_RuleBasedTransformer")
# ONNX Runtime 1.31 says which transformers changed a graph, but not which of the rules of one did. These are all of
# them, by the names that they answer to; those that a build lacks are left out, and what a later one has besides goes
# with its transformer.
_RULES = (
    *("CastChainElimination", "CastElimination", "ClipQuantRewrite", "ConvAddFusion", "ConvBNFusion", "ConvMulFusion"),
    *("DivMulFusion", "EliminateDropout", "EliminateIdentity", "EliminateSlice", "ExpandElimination", "FuseReluClip"),
    *("GemmSumFusion", "GemmTransposeFusion", "LabelEncoderFusion", "MatMul_BatchNormalization_Fusion"),
    *("NoopElimination", "NotWhereFusion", "Pad_Fusion", "PreShapeNodeElimination", "ReluQuantRewrite"),
    "UnsqueezeElimination",
)
_TABLES = ("provider_options", "session_config", "session_options")


def switches_of(changed: Iterable[str], options: OrtOptions, provider: str) -> tuple[Switch, ...]:
    """What could have been left.

    Args:
        changed: the names of the transformers that changed the graph.
        options: with which that was.
        provider: the first execution provider.
    """
    return (*_steps(changed, options), *_settings(options, provider))


def _steps(changed: Iterable[str], options: OrtOptions) -> Iterator[Switch]:
    left, told = {*options.disabled_optimizers}, set[str]()
    for name in changed:
        parts = [rule for rule in _RULES if is_optimizer(rule)] if _RULE_BASED.fullmatch(name) else []
        if left.issuperset(parts):  # a rule that is not known here, or no rule at all
            yield Switch(TRANSFORMER, name)
        yield from (Switch(RULE, rule) for rule in parts if rule not in {*left, *told})
        told.update(parts)


def _settings(options: OrtOptions, provider: str) -> Iterator[Switch]:
    """What a user has asked for, and what the CUDA provider does by itself that costs accuracy or varies."""
    on_cuda = provider == CUDA
    if on_cuda and options.tf32 is not False and "use_tf32" not in options.provider_options:
        yield Switch(SETTING, "tf32", changes_graph=False)
    if on_cuda and options.search_space != 0 and "cudnn_conv_algo_search" not in options.provider_options:
        yield Switch(SETTING, "search_space", changes_graph=False)
    for name in ("tunable", "use_cuda_graph"):
        if getattr(options, name):
            yield Switch(SETTING, name, changes_graph=False)
    for table in _TABLES:
        yield from (Switch(SETTING, f"{table}.{name}", changes_graph=False) for name in getattr(options, table))


def without(options: OrtOptions, off: Collection[Switch]) -> OrtOptions:
    """The options with which these are left.

    Raises:
        BackendError: ONNX Runtime has nothing of a name, and would ignore it.
    """
    names = [one.name for one in off if one.kind in (TRANSFORMER, RULE)]
    for name in names:
        if not is_optimizer(name):
            raise BackendError(f"ONNX Runtime knows no optimizer {name!r}, and would ignore it")
    made = replace(options, disabled_optimizers=(*dict.fromkeys((*options.disabled_optimizers, *names)),))
    for one in off:
        if one.kind == SETTING:
            made = _unset(made, one.name)
        elif one.kind not in (TRANSFORMER, RULE):
            raise BackendError(f"ONNX Runtime has no {one.kind} {one.name!r} to be left")
    return made


def _unset(options: OrtOptions, name: str) -> OrtOptions:
    table, _, entry = name.partition(".")
    changed: dict[str, Any] = {}
    if name in ("tf32", "tunable", "use_cuda_graph"):
        changed[name] = False
    elif name == "search_space":
        changed[name] = 0
    elif table in _TABLES and entry in getattr(options, table):
        changed[table] = {other: value for other, value in getattr(options, table).items() if other != entry}
    else:
        raise BackendError(f"ONNX Runtime was given no setting {name!r} that could be left")
    return replace(options, **changed)
