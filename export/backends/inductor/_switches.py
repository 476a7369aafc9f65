"""What of Inductor's work on a program can be left: passes, fusions, generated kernels, and what a user has set."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from ..._errors import BackendError
from .._backend import Switch
from ._options import InductorOptions

_PASSES, _CODE, _SETTING = "passes", "code generation", "setting"
# In the order of the work, and what the setting is without it. Inductor does not say which of them had an effect.
# Of two that help the later one is blamed: the first is PyTorch's own kernels instead of all that are generated, which
# nearly always helps and says little.
_STEPS: Mapping[str, tuple[str, Any]] = {
    "fallback_by_default": (_CODE, True),
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
    "emulate_precision_casts": (_CODE, True),  # rounds between operations where eager does
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
_OWN = {"mode": None, "search_space": None, "use_cuda_graph": None, "use_fp16_reduction": None, "use_fp16": False}
_UNSEEN = ("use_cuda_graph", "use_fp16_reduction")  # these change nothing that is generated
_COMMENT = re.compile(r"^\s*(?:# |//).*\n", re.MULTILINE)


def switches_of(options: InductorOptions, settings: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[Switch, ...]:
    """What could be left: of Inductor's steps, what is on; of the user's settings, what is set.

    Args:
        options: what the user has set.
        settings: all of it by Inductor's names.
        known: all of Inductor's settings, as they are by themselves.
    """
    return (*_steps(settings, known), *_settings(options))


def _steps(settings: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Switch]:
    for name, (kind, off) in _STEPS.items():
        if name in known and name not in settings and known[name] != off:
            yield Switch(kind, name)


def _settings(options: InductorOptions) -> Iterator[Switch]:
    for name, off in _OWN.items():
        if getattr(options, name) != off:
            yield Switch(_SETTING, name, changes_graph=name not in _UNSEEN)
    yield from (Switch(_SETTING, f"config.{name}") for name in options.config)


def without(options: InductorOptions, off: Collection[Switch]) -> InductorOptions:
    """The options with which these are left.

    Raises:
        BackendError: there is none of a name.
    """
    config, own = dict(options.config), dict[str, Any]()
    for one in off:
        entry = one.name.removeprefix("config.")
        if one.kind == _SETTING and one.name in _OWN:
            own[one.name] = _OWN[one.name]
        elif one.kind == _SETTING and entry in options.config:
            del config[entry]
        elif one.name in _STEPS and one.kind == _STEPS[one.name][0]:
            config[one.name] = _STEPS[one.name][1]
        else:
            raise BackendError(f"Inductor has no {one.kind} {one.name!r} to turn off")
    if own.get("use_fp16") is False:
        own["use_fp16_reduction"] = None  # which needs it
    return replace(options, **own, config=config)


def fingerprint_of(codes: Iterable[str]) -> str:
    """Of generated code, without its comments: these tell apart what is compiled again."""
    return sha256("\n".join(_COMMENT.sub("", code) for code in codes).encode()).hexdigest()[:16]
