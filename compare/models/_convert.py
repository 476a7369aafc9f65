"""Models and inputs in another dtype, or on another device."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from filch.export.common._suggestions import dtype_hint

from ..common._errors import CompareError, reason_of
from ._subject import Subject


def find_dtype(name: str) -> torch.dtype:
    """Return a floating-point dtype by its name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise CompareError(f"a dtype is one like float16, bfloat16, float32 or float64, not {name!r}{dtype_hint(name)}")
    return dtype


def find_device(name: str) -> torch.device:
    """Return a device by its name."""
    try:
        return torch.device(name)
    except RuntimeError:
        raise CompareError(f"a device is one like cpu or cuda:0, not {name!r}") from None


def device_problem(device: torch.device) -> str:
    """Return why torch can't use a device; `""` if it can."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, ImportError, RuntimeError) as error:  # no support in this build, no such device
        return f"torch can't use {str(device)!r}: {reason_of(error).partition('. ')[0]}"
    return f"tensors on {str(device)!r} have no numbers" if device.type == "meta" else ""


def converted(subject: Subject, dtype: torch.dtype | None, device: torch.device | None) -> Subject:
    """Return the model and its inputs on a device, with floating-point tensors cast to a dtype.

    Raises:
        CompareError: torch can't use the device, or can't move or cast the model.
    """
    if device is not None and (problem := device_problem(device)):
        raise CompareError(f"the model can't run there: {problem}; choose another device, or leave it out for the CPU")

    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

    to: Callable[..., Any] = subject.model.to  # its overloads accept no None
    try:
        model = to(device=device, dtype=dtype) if dtype or device else subject.model
        args, kwargs = tree_map(convert, subject.args), tree_map(convert, dict(subject.kwargs))
    except (
        NotImplementedError,
        RuntimeError,
        TypeError,
    ) as error:  # no memory, no such dtype there, on the device meta
        goal = " as ".join(str(item) for item in (device or "the same device", dtype) if item)
        raise CompareError(f"the model can't be moved to {goal}: {reason_of(error)}") from error
    return replace(subject, model=model, args=args, kwargs=kwargs)
