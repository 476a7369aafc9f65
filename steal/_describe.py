"""One line for any value: `f32[2, 30, 16]` for a tensor, the same inside any nesting."""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ._dtypes import not_storable, short
from ._structure import Foreign, Skipped, children


def describe(value: Any, *, with_shape: bool = True, statistics: bool = False) -> str:
    """Describe `value` in one line: the dtypes and shapes of its tensors, everything else as Python writes it.

    Args:
        value: a tensor, or any nesting that holds some.
        with_shape: write `f32[2, 30]` rather than the rank alone, `f32[r2]`.
        statistics: add minimum, maximum and mean of the finite numbers of each tensor, and the count of NaNs and infs.

    >>> describe(((torch.zeros(2, 30, dtype=torch.int64),), {"mask": None, "scale": 0.5}))
    '((i64[2, 30],), {mask: None, scale: 0.5})'
    """

    def tensor(found: torch.Tensor) -> str:
        where = "" if found.device.type == "cpu" else f"@{found.device}"
        numbers = f" {_statistics(found)}" if statistics and not_storable(found) is None else ""
        return short(found, with_shape=with_shape) + where + numbers

    return _describe(value, tensor, ())


def _describe(value: Any, tensor: Callable[[torch.Tensor], str], above: tuple[int, ...]) -> str:
    try:
        return _described(value, tensor, above)
    except Exception:  # noqa: BLE001  what can't write itself is no reason to end the run that prints it
        return f"<{type(value).__name__}>"


def _described(value: Any, tensor: Callable[[torch.Tensor], str], above: tuple[int, ...]) -> str:
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if id(value) in above:
        return "…"
    if isinstance(value, np.ndarray):
        return f"numpy {value.dtype}{list(value.shape)}"
    if isinstance(value, Skipped):
        return f"skipped {value.what} ({value.reason})"
    if isinstance(value, enum.Enum | str | torch.Size):
        return str(value) if isinstance(value, torch.Size) else repr(value)
    if (parts := children(value)) is None:
        return str(value).removeprefix("torch.")
    _, steps = parts
    items = [(key, _describe(child, tensor, (*above, id(value)))) for _, key, child in steps]
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        inner = ", ".join(text for _, text in items)
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(items) == 1 else f"({inner})"
    if isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
        return "{" + ", ".join(f"{key}: {text}" for key, text in items) + "}"
    name = value.type_name.rpartition(".")[2].rpartition(":")[2] if isinstance(value, Foreign) else type(value).__name__
    return f"{name}({', '.join(f'{key}={text}' for key, text in items)})"


def _statistics(tensor: torch.Tensor) -> str:
    if tensor.numel() == 0:
        return "empty"
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return "packed"  # torch computes nothing with two numbers in a byte
    if tensor.dtype.is_complex:
        tensor = tensor.abs()
    numbers = tensor.detach().to(torch.float64)
    finite = numbers[numbers.isfinite()]
    parts = [f"{finite.min():.4g} … {finite.max():.4g}, mean {finite.mean():.4g}"] if finite.numel() else []
    counts = {"NaN": int(numbers.isnan().sum()), "inf": int(numbers.isinf().sum())}
    return ", ".join(parts + [f"{count} {what}" for what, count in counts.items() if count])
