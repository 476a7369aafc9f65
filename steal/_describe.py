"""One line for any value: `f32[2, 30, 16]` for a tensor, the same inside any nesting."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ._dtypes import CARRIERS, dtype_name
from ._structure import Foreign, Skipped, children


def short_dtype(dtype: torch.dtype) -> str:
    """`torch.float32` -> `"f32"`."""
    return CARRIERS[dtype].short if dtype in CARRIERS else dtype_name(dtype)


def describe(value: Any, *, with_shape: bool = True, statistics: bool = False) -> str:
    """Describe `value` in one line: the dtypes and shapes of its tensors, everything else as Python writes it.

    Args:
        value: a tensor, or any nesting that holds some.
        with_shape: write `f32[2, 30]` rather than the rank alone, `f32[r2]`.
        statistics: add minimum, maximum and mean of the finite numbers of each tensor, and the count of NaNs and infs.

    >>> describe(((torch.zeros(2, 30, dtype=torch.int64),), {"mask": None, "scale": 0.5}))
    '((i64[2, 30],), {mask: None, scale: 0.5})'
    """

    def inside(child: Any) -> str:
        return describe(child, with_shape=with_shape, statistics=statistics)

    if isinstance(value, torch.Tensor):
        return _tensor(value, with_shape, statistics)
    if isinstance(value, np.ndarray):
        return f"numpy {value.dtype}{list(value.shape)}"
    if isinstance(value, Skipped):
        return f"skipped {value.what} ({value.reason})"
    if isinstance(value, enum.Enum | str | torch.Size):
        return str(value) if isinstance(value, torch.Size) else repr(value)
    if (parts := children(value)) is None:
        return str(value).removeprefix("torch.")
    _, steps = parts
    items = [(key, inside(child)) for _, key, child in steps]
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        inner = ", ".join(text for _, text in items)
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(items) == 1 else f"({inner})"
    if isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
        return "{" + ", ".join(f"{key}: {text}" for key, text in items) + "}"
    name = value.type_name.rpartition(".")[2].rpartition(":")[2] if isinstance(value, Foreign) else type(value).__name__
    return f"{name}({', '.join(f'{key}={text}' for key, text in items)})"


def _tensor(tensor: torch.Tensor, with_shape: bool, statistics: bool) -> str:
    shape = ", ".join(map(str, tensor.shape)) if with_shape else f"r{tensor.dim()}"
    where = "" if tensor.device.type == "cpu" else f"@{tensor.device}"
    text = f"{short_dtype(tensor.dtype)}[{shape}]{where}"
    return f"{text} {_statistics(tensor)}" if statistics and not tensor.is_meta else text


def _statistics(tensor: torch.Tensor) -> str:
    if tensor.numel() == 0:
        return "empty"
    if tensor.dtype.is_complex:
        tensor = tensor.abs()
    numbers = tensor.detach().to(torch.float64)
    finite = numbers[numbers.isfinite()]
    parts = [f"{finite.min():.4g} … {finite.max():.4g}, mean {finite.mean():.4g}"] if finite.numel() else []
    parts += [f"{count} {what}" for what, count in (("NaN", int(numbers.isnan().sum())), ("inf", int(numbers.isinf().sum()))) if count]  # fmt: skip
    return ", ".join(parts)
