"""Arrays and scalars of numpy as tensors, and back."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ._dtypes import dtype_name, dtype_of
from ._foreign import Spec

_BITS = {1: (torch.uint8, np.uint8), 2: (torch.uint16, np.uint16)}
_RAW = "SUMm"  # strings and times, held as their bytes
_LONG = frozenset("gG")  # the codes of longdouble and clongdouble, which torch lacks: held as their bytes, too
# Types of ml_dtypes that torch lacks or has no arithmetic for, and the narrowest types that hold their numbers.
_WIDER: dict[str, np.dtype[Any]] = {
    **dict.fromkeys(("int2", "int4"), np.dtype(np.int8)),
    **dict.fromkeys(("uint2", "uint4"), np.dtype(np.uint8)),
    **dict.fromkeys(("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"), np.dtype(np.float16)),
    **dict.fromkeys(("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"), np.dtype(np.float16)),
}
_STORED = re.compile(r"[<>|][SUMmiufcb]\d+(\[\w+\])?")  # what `"dtype"` may say: nothing with objects in it


def array_form(value: Any, *, exact: bool) -> tuple[torch.Tensor, Spec] | str:
    """An array's numbers as a tensor, and what its spec says besides; a reason if torch has no dtype.

    Args:
        value: an array or a scalar of numpy.
        exact: give a copy, and say how it lies in memory and whether it can be written to.
    """
    dtype = value.dtype
    # The arrays that a small file asks for may all be the same memory.
    plain = np.array(value, order="C") if exact else _contiguous(value)
    extra: Spec = {"scalar": True} if issubclass(type(value), np.generic) else {}
    if dtype.hasobject:
        return "Filch does not know how to store it"
    if exact and plain.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous:
        extra["order"] = "F"
    if exact and not (extra.get("scalar") or value.flags.writeable):
        extra["readonly"] = True
    if _is_raw(dtype) and dtype.itemsize:
        raw = plain.reshape(-1).view(np.uint8) if plain.size else np.zeros(0, np.uint8)
        return torch.from_numpy(raw.reshape(*plain.shape, dtype.itemsize)), extra | {"dtype": dtype.str}
    if dtype.type.__module__ == "ml_dtypes":
        narrow = dtype_of(dtype.name)
        if narrow is None and dtype.name in _WIDER:
            return torch.from_numpy(plain.astype(_WIDER[dtype.name])), extra | {"dtype": dtype.name}
        if narrow is None:
            return f"torch has no dtype {dtype}"
        return torch.from_numpy(plain.view(_BITS[dtype.itemsize][1])).view(narrow), extra
    if not dtype.isnative:
        plain, extra["dtype"] = plain.astype(dtype.newbyteorder("=")), dtype.str
    try:
        return torch.from_numpy(plain), extra
    except (TypeError, ValueError):
        return f"torch has no dtype {dtype}"


def _is_raw(dtype: "np.dtype[Any]") -> bool:
    """Whether numbers of this type are held as their bytes."""
    return dtype.kind in _RAW or dtype.char in _LONG


def _contiguous(value: Any) -> Any:
    """The same numbers without gaps, in the same memory where they have none."""
    if issubclass(type(value), np.generic) or not value.flags.c_contiguous:
        return np.array(value, order="C")
    found = np.asarray(value).view()
    try:
        found.flags.writeable = True  # torch warns of what is not; nobody will write to it
    except ValueError:
        return np.array(value)
    return found


def array_of(tensor: torch.Tensor, spec: Spec, copies: Callable[[int], None]) -> Any:
    """The inverse of `array_form`; the spec is not trusted.

    Args:
        tensor: as it is stored.
        spec: see `array_form`.
        copies: called with the number of bytes before these are copied.

    Raises:
        TypeError, ValueError: the spec does not fit the tensor.
    """
    name = dtype_name(tensor.dtype)
    if tensor.dtype.is_floating_point and not hasattr(np, name):
        array = tensor.view(_BITS[tensor.itemsize][0]).numpy().view(getattr(ml_dtypes, name))
    else:
        array = tensor.numpy()
    if "dtype" in spec:
        array = _under(array, spec["dtype"], copies)
    if spec.get("scalar"):
        copies(array.nbytes)
        return array[()]
    if spec.get("order") == "F":
        copies(array.nbytes)
        array = np.asfortranarray(array)
    if spec.get("readonly"):
        array = array.view()
        array.flags.writeable = False
    return array


def _under(array: Any, name: str, copies: Callable[[int], None]) -> Any:
    if name in _WIDER and array.dtype == _WIDER[name]:
        copies(array.nbytes)
        return array.astype(getattr(ml_dtypes, name))
    if not _STORED.fullmatch(name):
        raise ValueError(f"{name!r} is no dtype of an array")
    dtype = np.dtype(name)
    if _is_raw(dtype):
        if array.dtype != np.uint8 or array.shape[-1] != dtype.itemsize:
            raise ValueError(f"{array.dtype}{list(array.shape)} does not hold {dtype}")
        return array.view(dtype)[..., 0]
    if array.dtype != dtype.newbyteorder("="):
        raise ValueError(f"{array.dtype} does not hold {dtype}")
    copies(array.nbytes)
    return array.astype(dtype)
