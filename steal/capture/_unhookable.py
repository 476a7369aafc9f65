"""What hooks can't see of a model, and why."""

from collections.abc import Collection, Iterable

import torch
from torch import nn


def unseen(chosen: Iterable[tuple[str, nn.Module]], ran: Collection[str]) -> str | None:
    """One sentence about the chosen modules that were never heard of, if there is reason to think that they ran.

    Args:
        chosen: the names and modules that were listened to.
        ran: the names that were heard of.
    """
    chosen = list(chosen)
    compiled = [module for _, module in chosen if _is_compiled(module)]
    inside = {id(below) for module in compiled for below in module.modules()}
    silent = [name for name, module in chosen if id(module) in inside and name not in ran]
    if silent:
        return (
            f"{_some(silent)} not seen: torch.compile calls no hooks inside of what it compiled. "
            "torch.compiler.set_stance('force_eager') around the block runs the model as it is written."
        )
    if not ran:
        return f"{_some([name for name, _ in chosen])} never called; neither `.forward()` nor torch.compile calls hooks"
    return None


def _some(names: list[str]) -> str:
    first = repr(names[0]) if names[0] else "the model"
    return f"{first} and {len(names) - 1} more were" if len(names) > 1 else f"{first} was"


def _is_compiled(module: nn.Module) -> bool:
    # `torch.compile(module)` wraps a module, and `module.compile()` leaves what it made on it.
    wrapper = type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")
    return wrapper or getattr(module, "_compiled_call_impl", None) is not None


def scripted(names: Iterable[str]) -> str | None:
    """One sentence about the modules of these names, which torch.jit.script or torch.jit.trace made."""
    listed = list(names)
    return f"{_some(listed)} not seen: torch gives scripted modules no hooks" if listed else None


def is_scripted(module: nn.Module) -> bool:
    """Whether torch.jit made the module."""
    return isinstance(module, torch.jit.ScriptModule)
