"""The switches of ONNX Runtime: graph transformers, rewrite rules and settings."""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from ..._errors import BackendError
from .._backend import Switch
from ._options import CUDA, OrtOptions, is_optimizer

TRANSFORMER, RULE, SETTING = "graph transformer", "rewrite rule", "setting"
_RULE_BASED = re.compile(r"Level\d_RuleBasedTransformer")
# ONNX Runtime 1.31 logs which transformers changed a graph, but not which rewrite rules of a transformer did. These are
# the names of all rules. Those that a build lacks are skipped; new ones are turned off with their transformer.
_RULES = (
    *("CastChainElimination", "CastElimination", "ClipQuantRewrite", "ConvAddFusion", "ConvBNFusion", "ConvMulFusion"),
    *("DivMulFusion", "EliminateDropout", "EliminateIdentity", "EliminateSlice", "ExpandElimination", "FuseReluClip"),
    *("GemmSumFusion", "GemmTransposeFusion", "LabelEncoderFusion", "MatMul_BatchNormalization_Fusion"),
    *("NoopElimination", "NotWhereFusion", "Pad_Fusion", "PreShapeNodeElimination", "ReluQuantRewrite"),
    "UnsqueezeElimination",
)
_TABLES = ("provider_options", "session_config", "session_options")


def switches_of(changed: Iterable[str], options: OrtOptions, provider: str) -> tuple[Switch, ...]:
    """Return what can be turned off.

    Args:
        changed: the names of the transformers that changed the graph.
        options: the options of the compilation.
        provider: the first execution provider.
    """
    switches: list[Switch] = []
    disabled, listed = {*options.disabled_optimizers}, set[str]()
    for name in changed:
        rules = [rule for rule in _RULES if is_optimizer(rule)] if _RULE_BASED.fullmatch(name) else []
        if disabled.issuperset(rules):  # a rule that is missing in `_RULES`, or a transformer without rules
            switches.append(Switch(TRANSFORMER, name))
        switches += [Switch(RULE, rule) for rule in rules if rule not in {*disabled, *listed}]
        listed.update(rules)
    settings = [name for name in ("tunable", "use_cuda_graph") if getattr(options, name)]
    settings += [f"{table}.{name}" for table in _TABLES for name in getattr(options, table)]
    # Defaults of the CUDA provider that reduce accuracy or vary between runs.
    if provider == CUDA and options.search_space != 0 and "cudnn_conv_algo_search" not in options.provider_options:
        settings.insert(0, "search_space")
    if provider == CUDA and options.tf32 is not False and "use_tf32" not in options.provider_options:
        settings.insert(0, "tf32")
    return (*switches, *(Switch(SETTING, name, changes_graph=False) for name in settings))


def without(options: OrtOptions, off: Collection[Switch]) -> OrtOptions:
    """Return the options that turn off these switches.

    Raises:
        BackendError: ONNX Runtime has no switch of this name and would ignore it.
    """
    names = [switch.name for switch in off if switch.kind in (TRANSFORMER, RULE)]
    for name in names:
        if not is_optimizer(name):
            raise BackendError(f"ONNX Runtime has no optimizer {name!r} and would ignore it")
    reduced = replace(options, disabled_optimizers=(*dict.fromkeys((*options.disabled_optimizers, *names)),))
    for switch in off:
        if switch.kind == SETTING:
            reduced = _unset(reduced, switch.name)
        elif switch.kind not in (TRANSFORMER, RULE):
            raise BackendError(f"ONNX Runtime has no {switch.kind} {switch.name!r} to turn off")
    return reduced


def _unset(options: OrtOptions, name: str) -> OrtOptions:
    """Return the options with a setting turned off."""
    table, _, entry = name.partition(".")
    changed: dict[str, Any] = {}
    if name in ("tf32", "tunable", "use_cuda_graph"):
        changed[name] = False
    elif name == "search_space":
        changed[name] = 0
    elif table in _TABLES and entry in getattr(options, table):
        changed[table] = {other: value for other, value in getattr(options, table).items() if other != entry}
    else:
        raise BackendError(f"the options of ONNX Runtime have no setting {name!r} to turn off")
    return replace(options, **changed)
