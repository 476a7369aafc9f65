"""One line for any value: `f32[2, 30, 16]` for a tensor, the same inside any nesting."""

import enum
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ._dtypes import not_storable, short
from ._structure import Foreign, Skipped, children, type_name
from ._tensors import compact

_MOST = 10_000  # parts, in one line
_PART = 100  # characters of a text that count as another one


def describe(value: Any, *, with_shape: bool = True, statistics: bool = False) -> str:
    """Describe `value` in one line: the dtypes and shapes of its tensors, everything else as Python writes it.

    Args:
        value: a tensor, or any nesting that holds some.
        with_shape: write `f32[2, 30]` rather than the rank alone, `f32[r2]`.
        statistics: add minimum, maximum and mean of the finite numbers of each tensor, and the count of NaNs and infs.

    >>> describe(((torch.zeros(2, 30, dtype=torch.int64),), {"mask": None, "scale": 0.5}))
    '((i64[2, 30],), {mask: None, scale: 0.5})'
    """
    return _Line(with_shape=with_shape, statistics=statistics).of(value, ())


class _Line:
    """One description.

    Attributes:
        with_shape: see `describe`.
        statistics: see `describe`.
        left: how many more parts are described; lists that hold another twice, which holds another twice … have many.
        known: the statistics that were made, by where the numbers lie: the same may be asked for ten thousand times.
    """

    def __init__(self, *, with_shape: bool, statistics: bool) -> None:
        self.with_shape, self.statistics = with_shape, statistics
        self.left = _MOST
        self.known: dict[Any, str] = {}

    def of(self, value: Any, above: tuple[int, ...]) -> str:
        """The description of a value that lies in those of these `id`s."""
        try:
            return self._of(value, above)
        except Exception:  # noqa: BLE001  what can't write itself is no reason to end the run that prints it
            return f"<{type_name(type(value)).rpartition(':')[2].rpartition('.')[2]}>"

    def _of(self, value: Any, above: tuple[int, ...]) -> str:
        if not issubclass(type(value), torch.Tensor) and (id(value) in above or self.left <= 0):
            return "…"
        if _is_leaf(value) or (parts := children(value)) is None:
            return self._counted(self._leaf(value))
        return self._container(value, *parts, (*above, id(value)))

    def _counted(self, text: str) -> str:
        self.left -= len(text) // _PART
        return text

    def _leaf(self, value: Any) -> str:
        cls = type(value)
        if issubclass(cls, torch.Tensor):
            return self._tensor(value)
        if issubclass(cls, np.ndarray):
            return f"numpy {value.dtype}{list(value.shape)}"
        if cls is Skipped:
            return f"skipped {value.what} ({value.reason})"
        if issubclass(cls, enum.Enum | str | bytearray):
            return repr(value)
        text = str(value).removeprefix("torch.") if cls is not torch.Size else str(value)
        return f"<{cls.__name__}>" if "\n" in text else text

    def _container(self, value: Any, tag: str, steps: Iterator[Any], above: tuple[int, ...]) -> str:
        items = []
        for step, key, child in steps:
            if self.left <= 0:
                items.append(("…", "…"))
                break
            self.left -= 1
            if step.startswith("[") or tag in ("fields", "state"):
                label = self._counted(key) if type(key) is str else self.of(key, above)
                items.append((label, self.of(child, above)))
        name = self._counted(_name(value))
        if tag in ("fields", "state"):
            return f"{name}({', '.join(f'{key}={text}' for key, text in items)})"
        inner = ", ".join(f"{key}: {text}" if tag == "dict" else text for key, text in items)
        if tag == "tuple":
            inner = f"({inner},)" if len(items) == 1 else f"({inner})"
        elif tag == "list":
            inner = f"[{inner}]"
        else:
            inner = f"{{{inner}}}" if items or tag == "dict" else "set()"
        return f"{name}({inner})" if type(value) in (Foreign, frozenset, deque) else inner

    def _tensor(self, found: torch.Tensor) -> str:
        where = "" if found.device.type == "cpu" else f"@{found.device}"
        numbers = f" {self._numbers(found)}" if self.statistics and not_storable(found) is None else ""
        return short(found, with_shape=self.with_shape) + where + numbers

    def _numbers(self, found: torch.Tensor) -> str:
        place = (found.data_ptr(), found.dtype, found.shape, found.stride())
        if place not in self.known:
            self.known[place] = _statistics(found)
        return self.known[place]


def _is_leaf(value: Any) -> bool:
    """Whether a value is written whole, though it may have parts."""
    return issubclass(type(value), torch.Tensor | np.ndarray | Skipped | enum.Enum | str | bytearray)


def _name(value: Any) -> str:
    return value.type_name.rpartition(".")[2].rpartition(":")[2] if type(value) is Foreign else type(value).__name__


def _statistics(tensor: torch.Tensor) -> str:
    if tensor.numel() == 0:
        return "empty"
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return "packed"  # torch computes nothing with two numbers in a byte
    once = compact(tensor.detach())  # a small file can ask for a large expansion
    times = tensor.numel() // once.numel()
    numbers = (once.abs() if tensor.dtype.is_complex else once).to(torch.float64)
    finite = numbers[numbers.isfinite()]
    parts = [f"{finite.min():.4g} … {finite.max():.4g}, mean {finite.mean():.4g}"] if finite.numel() else []
    counts = {"NaN": times * int(numbers.isnan().sum()), "inf": times * int(numbers.isinf().sum())}
    return ", ".join(parts + [f"{count} {what}" for what, count in counts.items() if count])
