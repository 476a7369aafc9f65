"""Convert NumPy arrays and scalars to tensors and back."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ._dtypes import dtype_name, dtype_of
from ._foreign import UNKNOWN, Spec

# By item size, the integers as which torch and NumPy exchange numbers that NumPy lacks, such as bfloat16.
_BITS = {1: (torch.uint8, np.uint8), 2: (torch.uint16, np.uint16), 4: (torch.uint32, np.uint32)}
NOT_NUMERIC = "SUMm"  # dtype kinds of strings and times, which are stored as bytes
_OF_OTHERS = 2  # `isbuiltin` of a dtype that NumPy does not have itself
_LONG_DOUBLES = frozenset("gG")  # longdouble and clongdouble, which torch lacks; also stored as bytes
_VALID_DTYPE = re.compile(r"[<>|][SUMmiufcb]\d+(\[\w+\])?")  # valid values of "dtype": no object dtypes


def array_to_tensor(value: Any, *, exact: bool) -> tuple[torch.Tensor, Spec] | str:
    """Return an array's data as a tensor plus the other entries of its spec, or the reason why torch can't hold it.

    Args:
        value: a NumPy array or scalar.
        exact: copy the data, and record its memory order and whether it is writable.
    """
    dtype = value.dtype
    # Without `exact`, don't copy: many arrays of one small dump may share the same memory.
    array = np.array(value, order="C") if exact else _contiguous(value)
    extra: Spec = {"scalar": True} if issubclass(type(value), np.generic) else {}
    if dtype.hasobject:
        return UNKNOWN
    if exact and array.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous:
        extra["order"] = "F"
    if exact and not (extra.get("scalar") or value.flags.writeable):
        extra["readonly"] = True
    if _is_raw(dtype) and dtype.itemsize:  # empty strings have no bytes
        raw = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
        return torch.from_numpy(raw.reshape(*array.shape, dtype.itemsize)), extra | {"dtype": dtype.str}
    if dtype.type.__module__ == "ml_dtypes":
        torch_dtype = dtype_of(dtype.name)
        if torch_dtype is None and (wider := _wider(dtype.name)) is not None:
            return torch.from_numpy(array.astype(wider)), extra | {"dtype": dtype.name}
        if torch_dtype is None:
            return f"torch has no dtype {dtype}"
        return torch.from_numpy(array.view(_BITS[dtype.itemsize][1])).view(torch_dtype), extra
    if not dtype.isnative:
        array, extra["dtype"] = array.astype(dtype.newbyteorder("=")), dtype.str
    try:
        return torch.from_numpy(
            array.view(np.uint64) if array.dtype == np.uint64 else array
        ), extra  # NumPy has two such types
    except (TypeError, ValueError):
        return f"torch has no dtype {dtype}"


@lru_cache(maxsize=2**6)  # a damaged dump may have any names
def _wider(name: str) -> np.dtype[Any] | None:
    """Return the narrowest NumPy type that represents a type of ml_dtypes exactly; None if there is no such type."""
    kind = getattr(ml_dtypes, name, None)
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        return None
    if name == "bcomplex32":
        return np.dtype(np.complex64)
    integer_info: Any = ml_dtypes.iinfo  # its stubs don't say what it takes
    info: Any = ml_dtypes.finfo
    try:
        integers = integer_info(kind)
    except ValueError:
        floats = (np.float16, np.float32, np.float64)
        return next((np.dtype(item) for item in floats if _includes(info(item), info(kind))), None)
    return np.dtype(np.int8 if integers.min < 0 else np.uint8) if integers.bits <= 8 else None


def _includes(wide: Any, narrow: Any) -> bool:
    """Return whether a floating-point type has the numbers of another one."""
    smallest, largest = float(narrow.smallest_subnormal), float(narrow.max)
    return narrow.nmant <= wide.nmant and largest <= float(wide.max) and smallest >= float(wide.smallest_subnormal)


def _is_raw(dtype: "np.dtype[Any]") -> bool:
    """Return whether arrays of this dtype are stored as bytes."""
    # Other packages' dtypes may have any `char`: that of float8_e4m3fnuz is clongdouble's.
    return dtype.kind in NOT_NUMERIC or (dtype.isbuiltin != _OF_OTHERS and dtype.char in _LONG_DOUBLES)


def _contiguous(value: Any) -> Any:
    """Return a C-contiguous, writable array with the same data; share memory if possible."""
    if issubclass(type(value), np.generic) or not value.flags.c_contiguous:
        return np.array(value, order="C")
    view = np.asarray(value).view()
    try:
        view.flags.writeable = True  # torch warns about read-only arrays; nothing writes to this one
    except ValueError:
        return np.array(value)
    return view


def tensor_to_array(tensor: torch.Tensor, spec: Spec, count_copy: Callable[[int], None]) -> Any:
    """Return the array or scalar of a stored tensor: the inverse of `array_to_tensor` for an untrusted spec.

    Args:
        tensor: the stored tensor.
        spec: see `array_to_tensor`.
        count_copy: called with the number of bytes before each copy.

    Raises:
        TypeError, ValueError: the spec doesn't match the tensor.
    """
    name = dtype_name(tensor.dtype)
    if (tensor.dtype.is_floating_point or tensor.is_complex()) and not hasattr(np, name):
        array = tensor.view(_BITS[tensor.itemsize][0]).numpy().view(getattr(ml_dtypes, name))
    else:
        array = tensor.numpy()
    if "dtype" in spec:
        array = _with_dtype(array, spec["dtype"], count_copy)
    if spec.get("scalar"):
        count_copy(array.nbytes)
        return array[()]
    if spec.get("order") == "F":
        count_copy(array.nbytes)
        array = np.asfortranarray(array)
    if spec.get("readonly"):
        array = array.view()
        array.flags.writeable = False
    return array


def _with_dtype(array: Any, name: str, count_copy: Callable[[int], None]) -> Any:
    """Return the stored array with the dtype that its spec names."""
    if (wider := _wider(name)) is not None and array.dtype == wider:
        count_copy(array.nbytes)
        return array.astype(getattr(ml_dtypes, name))
    if not _VALID_DTYPE.fullmatch(name):
        raise ValueError(f"{name!r} is not a NumPy dtype")
    dtype = np.dtype(name)
    if _is_raw(dtype):
        if array.dtype != np.uint8 or array.shape[-1] != dtype.itemsize:
            raise ValueError(f"{array.dtype}{list(array.shape)} does not store {dtype}")
        return array.view(dtype)[..., 0]
    if array.dtype != dtype.newbyteorder("="):
        raise ValueError(f"{array.dtype} does not store {dtype}")
    count_copy(array.nbytes)
    return array.astype(dtype)
