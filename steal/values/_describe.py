"""Describe any value in one line: `f32[2, 30, 16]` for a tensor, nested containers as Python writes them."""

import enum
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ._children import Child, children
from ._dtypes import dtype_and_shape, is_storable
from ._foreign import Foreign, Skipped, class_name
from ._sharding import LocalShard
from ._statistics import statistics
from ._tensors import unexpand

_MAX_PARTS = 10_000  # parts in one line
_PART_LENGTH = 100  # characters of text that count as one part


def describe(value: Any, *, with_shape: bool = True, statistics: bool = False) -> str:
    """Describe `value` in one line: dtype and shape of each tensor, everything else as Python writes it.

    Args:
        value: any nesting of tensors and other values.
        with_shape: write `f32[2, 30]` rather than `f32[r2]`, with the rank only.
        statistics: add minimum, maximum and mean of each tensor's finite elements, and the number of NaNs and infs.

    >>> describe(((torch.zeros(2, 30, dtype=torch.int64),), {"mask": None, "scale": 0.5}))
    '((i64[2, 30],), {mask: None, scale: 0.5})'
    """
    return _Describer(with_shape=with_shape, statistics=statistics).describe(value, ())


class _Describer:
    """State of one `describe` call.

    Attributes:
        with_shape: see `describe`.
        statistics: see `describe`.
        remaining: how many more parts to describe. A small value can have exponentially many: lists that contain
            another list twice, which contains another twice, and so on.
        statistics_texts: descriptions of statistics by memory, shape and dtype, as one tensor may occur many times.
    """

    def __init__(self, *, with_shape: bool, statistics: bool) -> None:
        self.with_shape, self.statistics = with_shape, statistics
        self.remaining = _MAX_PARTS
        self.statistics_texts: dict[Any, str] = {}

    def describe(self, value: Any, ancestors: tuple[int, ...]) -> str:
        """Describe a value; `ancestors` has the `id`s of the containers around it."""
        try:
            return self._describe(value, ancestors)
        except Exception:  # noqa: BLE001  a `__repr__` that raises must not end the run
            return f"<{class_name(type(value))}>"

    def _describe(self, value: Any, ancestors: tuple[int, ...]) -> str:
        if not issubclass(type(value), torch.Tensor) and (id(value) in ancestors or self.remaining <= 0):
            return "…"
        if _is_leaf(value) or (tag_and_children := children(value)) is None:
            return self._counted(self._leaf(value))
        return self._container(value, *tag_and_children, (*ancestors, id(value)))

    def _counted(self, text: str) -> str:
        """Return a text, and count it as parts if it is long."""
        self.remaining -= len(text) // _PART_LENGTH
        return text

    def _leaf(self, value: Any) -> str:
        """Describe a tensor or another value without items; a class name if its text has several lines."""
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

    def _container(self, value: Any, tag: str, members: Iterator[Child], ancestors: tuple[int, ...]) -> str:
        """Describe a container; `tag` and `members` are the result of `children`.

        Attributes of a subclass of a list, dict and so on (with path steps like `.name`) are omitted.
        """
        items = []
        for step, key, child in members:
            if self.remaining <= 0:
                items.append(("…", "…"))
                break
            self.remaining -= 1
            if step.startswith("[") or tag in ("fields", "state"):
                label = self._counted(key) if type(key) is str else self.describe(key, ancestors)
                items.append((label, self.describe(child, ancestors)))
        name = self._counted(_short_class_name(value))
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

    def _tensor(self, tensor: torch.Tensor) -> str:
        device = "" if tensor.device.type == "cpu" else f"@{tensor.device}"
        suffix = f" {self._statistics(tensor)}" if self.statistics and is_storable(tensor) else ""
        layout = ""
        if isinstance(tensor, LocalShard):
            placements = ", ".join(map(str, tensor.sharding.placements))
            layout = f" ({placements} of {list(tensor.sharding.shape)})"
        return dtype_and_shape(tensor, with_shape=self.with_shape) + device + layout + suffix

    def _statistics(self, tensor: torch.Tensor) -> str:
        """Return the cached text of `_describe_statistics`."""
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in self.statistics_texts:
            self.statistics_texts[key] = _describe_statistics(tensor)
        return self.statistics_texts[key]


def _is_leaf(value: Any) -> bool:
    """Return whether a value is written as a whole although `children` may split it."""
    return issubclass(type(value), torch.Tensor | np.ndarray | Skipped | enum.Enum | str | bytearray)


def _short_class_name(value: Any) -> str:
    """Return the name of a value's class without its module; of a `Foreign`, that of the class it stands for."""
    return value.type_name.rpartition(".")[2].rpartition(":")[2] if type(value) is Foreign else type(value).__name__


def _describe_statistics(tensor: torch.Tensor) -> str:
    """Return minimum, maximum and mean of a tensor, and how many NaNs and infinities it has."""
    if tensor.numel() == 0:
        return "empty"
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return "packed"  # two numbers per byte, which torch can't compute with
    distinct = unexpand(tensor.detach())  # a small tensor can be expanded to any size
    repeats = tensor.numel() // distinct.numel()
    summary = statistics(distinct, content=False)
    parts = [] if summary.mean is None else [f"{summary.minimum:.4g} … {summary.maximum:.4g}, mean {summary.mean:.4g}"]
    counts = {"NaN": repeats * summary.nan, "inf": repeats * summary.inf}
    return ", ".join(parts + [f"{count} {what}" for what, count in counts.items() if count])
