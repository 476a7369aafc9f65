"""Arrays and scalars of numpy as tensors, and back."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ._dtypes import dtype_name, dtype_of
from ._foreign import Spec

_BITS = {1: (torch.uint8, np.uint8), 2: (torch.uint16, np.uint16)}
_RAW = "SUMm"  # strings and times, held as their bytes
_STORED = re.compile(r"[<>|][SUMmiufcb]\d+(\[\w+\])?")  # what `"dtype"` may say: nothing with objects in it


def array_form(value: Any, *, exact: bool) -> tuple[torch.Tensor, Spec] | str:
    """A copy of an array's numbers as a tensor, and what its spec says besides; a reason if torch has no dtype.

    Args:
        value: an array or a scalar of numpy.
        exact: say how it lies in memory, and whether it can be written to.
    """
    plain, dtype = np.array(value, order="C"), value.dtype
    extra: Spec = {"scalar": True} if issubclass(type(value), np.generic) else {}
    if dtype.hasobject:
        return "Filch does not know how to store it"
    if exact and plain.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous:
        extra["order"] = "F"
    if exact and not (extra.get("scalar") or value.flags.writeable):
        extra["readonly"] = True
    if dtype.kind in _RAW and dtype.itemsize:
        raw = np.frombuffer(bytearray(plain.tobytes()), np.uint8) if plain.size else np.zeros(0, np.uint8)
        return torch.from_numpy(raw.reshape(*plain.shape, dtype.itemsize)), extra | {"dtype": dtype.str}
    if dtype.type.__module__ == "ml_dtypes":
        narrow = dtype_of(dtype.name)
        if narrow is None:
            return f"torch has no dtype {dtype}"
        return torch.from_numpy(plain.view(_BITS[dtype.itemsize][1])).view(narrow), extra
    if not dtype.isnative:
        plain, extra["dtype"] = plain.astype(dtype.newbyteorder("=")), dtype.str
    try:
        return torch.from_numpy(plain), extra
    except (TypeError, ValueError):
        return f"torch has no dtype {dtype}"


def array_of(tensor: torch.Tensor, spec: Spec) -> Any:
    """The inverse of `array_form`; the spec is not trusted.

    Raises:
        TypeError, ValueError: the spec does not fit the tensor.
    """
    name = dtype_name(tensor.dtype)
    if tensor.dtype.is_floating_point and not hasattr(np, name):
        array = tensor.view(_BITS[tensor.itemsize][0]).numpy().view(getattr(ml_dtypes, name))
    else:
        array = tensor.numpy()
    if "dtype" in spec:
        array = _under(array, spec["dtype"])
    if spec.get("scalar"):
        return array[()]
    if spec.get("order") == "F":
        array = np.asfortranarray(array)
    if spec.get("readonly"):
        array = array.view()
        array.flags.writeable = False
    return array


def _under(array: Any, name: str) -> Any:
    if not _STORED.fullmatch(name):
        raise ValueError(f"{name!r} is no dtype of an array")
    dtype = np.dtype(name)
    if dtype.kind in _RAW:
        if array.dtype != np.uint8 or array.shape[-1] != dtype.itemsize:
            raise ValueError(f"{array.dtype}{list(array.shape)} does not hold {dtype}")
        return array.view(dtype)[..., 0]
    if array.dtype != dtype.newbyteorder("="):
        raise ValueError(f"{array.dtype} does not hold {dtype}")
    return array.astype(dtype)
