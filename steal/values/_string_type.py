"""Describe nested values in the short type codes of onnx-diagnostic, such as `(T7s2x30,)`."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from onnx import helper

from ._arrays import NOT_NUMERIC, array_to_tensor
from ._children import children
from ._dtypes import CARRIERS, COMPLEX_HALVES, dtype_name
from ._foreign import MAX_DEPTH, class_name

_MAX_ITEMS = 25  # items; a longer sequence is represented by its first item
_FLOAT4 = 23  # TensorProto.FLOAT4E2M1, of which torch packs two in a byte
_COMPLEX = {torch.complex64: 14, torch.complex128: 15}  # TensorProto numbers; dumps store pairs of reals instead


def string_type(value: Any, *, with_shape: bool = False, with_device: bool = False, with_min_max: bool = False) -> str:
    """Describe the types of a nested value in one line.

    A tensor is `T` and the number of its dtype in `onnx.TensorProto.DataType`, then `r` and its rank or `s` and its
    shape: `T1r2` or `T1s2x30` for float32. A NumPy array begins with `A`, a fake tensor with `F`. A list is
    `#2[…,…]`, a dict `dict(key:…)`; other values are written as the names of their types.

    Args:
        value: any nesting of tensors and other values, including dynamic shapes of `torch.export`.
        with_shape: write shapes instead of ranks.
        with_device: prefix tensors with `C` for the CPU or `G` for any other device.
        with_min_max: add minimum, maximum and mean of a tensor's elements other than NaN, the number of NaNs, and the
            value of Python numbers.

    >>> string_type((torch.zeros(2, 30, dtype=torch.int64),), with_shape=True)
    '(T7s2x30,)'

    Source: `onnx_diagnostic.helpers.string_type`.
    """
    return _Coder(with_shape=with_shape, with_device=with_device, with_min_max=with_min_max).code(value, 0)


class _Coder:
    """Options of one `string_type` call."""

    def __init__(self, *, with_shape: bool, with_device: bool, with_min_max: bool) -> None:
        self._with_shape, self._with_device, self._with_min_max = with_shape, with_device, with_min_max

    def code(self, value: Any, depth: int) -> str:
        """Return the type code of a value that is nested `depth` times."""
        cls = type(value)
        if depth > MAX_DEPTH:
            return "…"
        if issubclass(cls, torch.Tensor):
            return self._tensor(value, "F" if cls.__name__ == "FakeTensor" else "T")
        if issubclass(cls, np.ndarray):
            return self._array(value)
        if issubclass(cls, bool | int | float | complex) and cls.__module__ == "builtins":
            return f"{cls.__name__}={value}" if self._with_min_max else cls.__name__
        if cls in (str, slice, type(None), torch.SymInt, torch.SymFloat, torch.dtype):
            return "None" if value is None else cls.__name__
        if _is_dimension(value):
            return _dimension(value)
        return self._container(value, depth + 1)

    def _container(self, value: Any, depth: int) -> str:
        """Return the type code of a container with those of its items, or the class name of any other value."""
        cls = type(value)
        if cls is tuple:
            return self._sequence(value, depth, "({})", "({},)")
        if cls is list:
            return f"#{len(value)}" + self._sequence(value, depth, "[{}]", "[{}]")
        if cls in (set, frozenset):
            return self._sequence(sorted(value, key=repr), depth, "{{{}}}", "{{{}}}")
        if cls is dict:
            return self._mapping(value, depth)
        if layers := _cache_layers(value):
            keys, values = ([getattr(layer, name) for layer in layers] for name in ("keys", "values"))
            return f"{cls.__name__}(key_cache={self.code(keys, depth)}, value_cache={self.code(values, depth)})"
        name = class_name(cls)
        tag_and_children = children(value)
        if tag_and_children is None:
            return name
        return f"{name}({','.join(f'{key}:{self.code(child, depth)}' for _, key, child in tag_and_children[1])})"

    def _sequence(self, items: Any, depth: int, template: str, template_of_one: str) -> str:
        """Insert the type codes of items, or only the first of many, into the brackets of `template`."""
        if len(items) < _MAX_ITEMS:
            codes = ",".join(self.code(item, depth) for item in items)
            return (template_of_one if len(items) == 1 else template).format(codes)
        text = template.format(f"{self.code(items[0], depth)},...")
        if self._with_min_max and all(isinstance(item, int | float) for item in items):
            text += f"[{min(items)},{max(items)}:{sum(items) / len(items)}]"
        return text

    def _mapping(self, value: dict[Any, Any], depth: int) -> str:
        """Return the type code of a dict; `{…}` if its keys are integers, as in the dynamic shapes of one tensor."""
        if not value:
            return "{}"
        has_int_keys = all(isinstance(key, int) for key in value)
        is_dynamic_shape = has_int_keys and all(isinstance(item, str) or _is_dimension(item) for item in value.values())
        inner = ",".join(
            f"{key}:DYN({item})" if is_dynamic_shape and isinstance(item, str) else f"{key}:{self.code(item, depth)}"
            for key, item in value.items()
        )
        return f"{{{inner}}}" if has_int_keys else f"dict({inner})"

    def _tensor(self, value: torch.Tensor, letter: str) -> str:
        device = ("C" if value.device.type == "cpu" else "G") if self._with_device and letter == "T" else ""
        text = f"{device}{letter}{_dtype_code(value.dtype)}{self._dims(value.shape)}"
        has_numbers = letter == "T" and not value.is_meta
        return text + _statistics(value) if self._with_min_max and has_numbers else text

    def _array(self, value: np.ndarray) -> str:
        text = f"A{_array_code(value.dtype)}{self._dims(value.shape)}"
        converted = array_to_tensor(value, exact=False)
        if not self._with_min_max or isinstance(converted, str) or value.dtype.kind in NOT_NUMERIC:
            return text
        return text + _statistics(converted[0])

    def _dims(self, shape: Iterable[int]) -> str:
        """Return `s` and the shape, or `r` and the rank."""
        sizes = [*shape]
        return f"s{'x'.join(map(str, sizes))}" if self._with_shape else f"r{len(sizes)}"


def _statistics(tensor: torch.Tensor) -> str:
    """Return `[minimum,maximum:Amean]` of the elements other than NaN, with the number of NaNs; `=value` of a scalar.

    Of complex elements, the absolute values are used.
    """
    if not tensor.numel():
        return "[empty]"
    if not tensor.dim():
        return f"={tensor.item()}"
    elements = tensor.detach()
    elements = elements.abs() if elements.is_complex() else elements
    nan_count = int(elements.isnan().sum()) if elements.is_floating_point() else 0
    not_nan = elements[~elements.isnan()] if nan_count else elements
    if not not_nan.numel():
        return f"[N{nan_count}nans]"
    nans = f"N{nan_count}nans" if nan_count else ""
    float64 = not_nan.double()  # torch has no min/max for narrow types
    minimum, maximum = (end.to(not_nan.dtype).item() for end in (float64.min(), float64.max()))
    return f"[{minimum},{maximum}:A{float64.mean().item()}{nans}]"


def _dtype_code(dtype: torch.dtype) -> str:
    """Return the `TensorProto.DataType` number of a dtype, or its name if ONNX has none."""
    if dtype == torch.float4_e2m1fn_x2:
        return str(_FLOAT4)
    if dtype in _COMPLEX:
        return str(_COMPLEX[dtype])
    if dtype in CARRIERS and dtype not in COMPLEX_HALVES:
        return str(CARRIERS[dtype].onnx_type)
    return dtype_name(dtype)


def _array_code(dtype: "np.dtype[Any]") -> str:
    """Return the `TensorProto.DataType` number of a NumPy dtype, or its name if ONNX has none."""
    try:
        return str(int(helper.np_dtype_to_tensor_dtype(dtype)))
    except (KeyError, ValueError):
        return dtype.name


def _is_dimension(value: Any) -> bool:
    """Return whether a value is a dimension of `torch.export`'s dynamic shapes, such as `Dim("batch")`."""
    return type(value).__module__ == torch.export.dynamic_shapes.__name__


def _dimension(value: Any) -> str:
    """Return the code of a dimension of `torch.export`: `Dim(batch)`, `DerivedDim`, `DYNAMIC`, `AUTO` or `STATIC`.

    A `Dim` has a `__name__`, a hint such as `Dim.AUTO` an enumerated `type`, and what is derived from a `Dim` a `root`.
    """
    name = getattr(value, "__name__", None)
    if name is not None:
        return "DerivedDim" if hasattr(value, "root") else f"Dim({name})"
    kind = getattr(value, "type", None)
    return getattr(kind, "name", type(value).__name__)


def _cache_layers(value: Any) -> list[Any]:
    """Return the layers of a transformers key-value cache, or an empty list for any other value."""
    layers = getattr(value, "layers", None) if type(value).__name__.endswith("Cache") else None
    layers = list(layers) if isinstance(layers, list | tuple) else []
    return layers if all(hasattr(layer, "keys") and hasattr(layer, "values") for layer in layers) else []
