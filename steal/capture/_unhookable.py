"""Warnings about modules whose calls hooks can't see."""

from collections.abc import Collection, Iterable

import torch
from torch import nn


def uncalled_hooks_warning(hooked: Iterable[tuple[str, nn.Module]], called: Collection[str]) -> str | None:
    """Return a warning about modules that probably ran without their hooks being called; None if there are none.

    Args:
        hooked: the names and modules that have hooks.
        called: the names whose hooks were called.
    """
    hooked = list(hooked)
    compiled = [module for _, module in hooked if is_compiled(module)]
    compiled_ids = {id(submodule) for module in compiled for submodule in module.modules()}
    missed = [name for name, module in hooked if id(module) in compiled_ids and name not in called]
    if missed:
        return (
            f"{subject_and_verb(missed)} not captured: torch.compile calls no hooks inside of compiled code. "
            "torch.compiler.set_stance('force_eager') around the block runs the model without compilation."
        )
    if not called:
        subject = subject_and_verb([name for name, _ in hooked])
        return f"{subject} never called; neither `.forward()` nor torch.compile calls hooks"
    return None


def subject_and_verb(names: list[str]) -> str:
    """Return the beginning of a sentence about modules, such as `'encoder' and 2 more were`."""
    first = repr(names[0]) if names[0] else "the model"
    return f"{first} and {len(names) - 1} more were" if len(names) > 1 else f"{first} was"


def is_compiled(module: nn.Module) -> bool:
    """Return whether torch.compile wraps a module or has compiled it in place."""
    # `torch.compile(module)` wraps a module; `module.compile()` sets an attribute of it.
    wrapper = type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")
    return wrapper or getattr(module, "_compiled_call_impl", None) is not None


def scripted_warning(names: list[str]) -> str:
    """Return a warning about modules made by torch.jit."""
    return f"{subject_and_verb(names)} not captured: torch supports no hooks on scripted modules"


def is_scripted(module: nn.Module) -> bool:
    """Return whether torch.jit.script or torch.jit.trace made the module."""
    return isinstance(module, torch.jit.ScriptModule)
