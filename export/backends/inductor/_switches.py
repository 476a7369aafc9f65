"""The switches of Inductor: decompositions, passes, lowerings, fusions, generated kernels and options of the user."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from ..._errors import BackendError
from .._backend import Switch
from ._options import InductorOptions
from ._steps import KINDS

_PASSES, _LOWERING, _CODE, _SETTING = "pass", "lowering", "code generation", "setting"
# In the order of compilation, with the value that turns the step off. Inductor does not report which had an effect.
# If two steps remove an error, the later one is blamed. So the first is `fallback_by_default`, which uses PyTorch's own
# kernels instead of generated ones: it nearly always removes the error, but locates nothing.
_FALLBACK = "fallback_by_default"
_STEPS: Mapping[str, tuple[str, Any]] = {
    _FALLBACK: (_LOWERING, True),
    "use_pre_grad_passes": (_PASSES, False),
    "use_joint_graph_passes": (_PASSES, False),
    "joint_graph_constant_folding": (_PASSES, False),
    "pattern_matcher": (_PASSES, False),
    "use_post_grad_passes": (_PASSES, False),
    "layout_optimization": (_CODE, False),
    "comprehensive_padding": (_CODE, False),
    "cpp.weight_prepack": (_CODE, False),
    "split_reductions": (_CODE, False),
    "online_softmax": (_CODE, False),
    "unroll_reductions_threshold": (_CODE, 1),
    "emulate_precision_casts": (_CODE, True),  # rounds between operations like eager PyTorch
    "prologue_fusion": (_CODE, False),
    "epilogue_fusion": (_CODE, False),
    "loop_ordering_after_fusion": (_CODE, False),
    "max_fusion_size": (_CODE, 1),
    "cpp.max_horizontal_fusion_size": (_CODE, 1),
    "reorder_for_locality": (_CODE, False),
    "inplace_buffers": (_CODE, False),
    "allow_buffer_reuse": (_CODE, False),
    "cpp.simdlen": (_CODE, 1),
}
_OPTIONS = {"mode": None, "search_space": None, "use_cuda_graph": None, "use_fp16_reduction": None, "use_fp16": False}
_SAME_CODE = ("use_cuda_graph", "use_fp16_reduction")  # these do not change the generated code
_COMMENT = re.compile(r"^\s*(?:# |//).*\n", re.MULTILINE)


def switches_of(
    options: InductorOptions,
    settings: Mapping[str, Any],
    known: Mapping[str, Any],
    taken: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Switch, ...]:
    """Return what can be turned off: the steps of Inductor that are on, and the options that the user has set.

    Args:
        options: the options of the user.
        settings: these options by Inductor's names.
        known: all settings of Inductor with their defaults.
        taken: the kinds of the steps of a compilation, by name.
    """
    groups = [
        Switch(kind, name)
        for name, (kind, off) in _STEPS.items()
        if name in known and name not in settings and known[name] != off  # those in `settings` are options, below
    ]
    # A single step explains more than its group, and less than how code is generated for all.
    first = [switch for switch in groups if switch.kind != _CODE]
    single = [Switch(kind, name) for name, kind in taken.items()]
    steps = (*first, *single, *(switch for switch in groups if switch not in first))
    set_options = (
        Switch(_SETTING, name, changes_graph=name not in _SAME_CODE)
        for name, off in _OPTIONS.items()
        if getattr(options, name) != off
    )
    return (*steps, *set_options, *(Switch(_SETTING, f"config.{name}") for name in options.config))


def without(options: InductorOptions, off: Collection[Switch]) -> InductorOptions:
    """Return the options that turn off these switches.

    Raises:
        BackendError: there is no switch of this name.
    """
    config, changed = dict(options.config), dict[str, Any]()
    for switch in off:
        entry = switch.name.removeprefix("config.")
        if switch.kind == _SETTING and switch.name in _OPTIONS:
            changed[switch.name] = _OPTIONS[switch.name]
        elif switch.kind == _SETTING and entry in options.config:
            del config[entry]
        elif switch.name in _STEPS and switch.kind == _STEPS[switch.name][0]:
            config[switch.name] = _STEPS[switch.name][1]
        elif switch.kind in KINDS:
            changed["without"] = (*changed.get("without", options.without), switch.name)
        else:
            raise BackendError(f"Inductor has no {switch.kind} {switch.name!r} to turn off")
    if changed.get("use_fp16") is False:
        changed["use_fp16_reduction"] = None  # requires use_fp16
    return replace(options, **changed, config=config)


def fingerprint_of(codes: Iterable[str]) -> str:
    """Hash generated code without its comments, which differ between compilations."""
    return sha256("\n".join(_COMMENT.sub("", code) for code in codes).encode()).hexdigest()[:16]
