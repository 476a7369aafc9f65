"""Models and inputs in another dtype, or on another device."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from filch.export import dtype_hint

from ..common._errors import CompareError
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


def converted(subject: Subject, dtype: torch.dtype | None, device: torch.device | None) -> Subject:
    """Return the model and its inputs on a device, with floating-point tensors cast to a dtype."""

    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

    to: Callable[..., Any] = subject.model.to  # its overloads accept no None
    model = to(device=device, dtype=dtype) if dtype or device else subject.model
    args, kwargs = tree_map(convert, subject.args), tree_map(convert, dict(subject.kwargs))
    return replace(subject, model=model, args=args, kwargs=kwargs)
