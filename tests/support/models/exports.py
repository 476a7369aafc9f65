"""What torch repeats in each export, done once: most of the time that it takes to export a small model."""

import contextlib
import copy
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from filch.export import Program


def copied(program: Program) -> Program:
    """Return a copy that may be changed; its original, which takes long to read from a file, is the same object."""
    return replace(program, model=program.model.clone())


@contextlib.contextmanager
def quick_exports() -> Iterator[None]:
    """Give each export a copy of one registry, and list the composite operators once."""
    with pytest.MonkeyPatch.context() as patch:
        _read_torchlib_once(patch)
        if torch.__version__.startswith("2.13."):  # what is replaced is private, and another version may lack it
            _list_composite_operators_once(patch)
        yield


def _read_torchlib_once(patch: pytest.MonkeyPatch) -> None:
    """`torch.onnx.export` (torch 2.13) translates onnxscript's 497 functions anew in each call.

    That is two thirds of what it takes to export a small model.
    """
    read = functools.cache(ONNXRegistry.from_torchlib)

    def copied(*args: Any, **kwargs: Any) -> ONNXRegistry:
        registry = copy.copy(read(*args, **kwargs))
        registry.functions = {target: [*found] for target, found in registry.functions.items()}
        return registry

    patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(copied))


def _list_composite_operators_once(patch: pytest.MonkeyPatch) -> None:
    """To decompose a program, torch 2.13 asks its dispatcher for all operators 58 times.

    It registers some 300 of them for 21 kinds of devices, of which those of the tests are left: over half of what is
    left of exporting a small model.
    """
    from torch._export import utils
    from torch.export import decomp_utils, exported_program

    list_operators = utils._collect_all_valid_cia_ops  # noqa: SLF001  as all of this, it is not public

    @functools.cache
    def listed(registered: frozenset[str]) -> Any:  # a test may register an operator
        return list_operators()

    def listed_now() -> Any:
        key = "CompositeImplicitAutograd"
        return listed(frozenset(torch._C._dispatch_get_registrations_for_dispatch_key(key)))  # noqa: SLF001

    for module in (utils, decomp_utils, exported_program):
        patch.setattr(module, "_collect_all_valid_cia_ops", listed_now)
    for name in ("_AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE", "_BACKEND_KEYS_TO_OVERRIDE"):
        keys = [key for key in getattr(exported_program, name) if key.name.endswith(("CPU", "CUDA", "Meta"))]
        patch.setattr(exported_program, name, keys)
