"""Read the inputs of a program from a file: NumPy's `.npz`, `.safetensors`, or JSON in the format of Polygraphy."""

import base64
import binascii
import io
import lzma
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import parse_json, read_untrusted
from filch.steal.text._visible import short_line

from ..common._errors import CompareError
from ._safetensors import read_safetensors

_COMPRESSION = 60  # bytes of an array for each byte of the file; more is an attack, or hardly a test
_SMALL, _LARGE = 2**20, 2**31  # bytes that any file may be decompressed to, and at most unless it has as many
# The start of a file of NumPy by its version, and its header, as all programs write it.
_HEADERS = {
    b"\x93NUMPY\1\0": struct.Struct("<H"),
    b"\x93NUMPY\2\0": struct.Struct("<I"),
    b"\x93NUMPY\3\0": struct.Struct("<I"),
}
_HEADER = re.compile(
    r"\{\s*'descr':\s*(?P<descr>'[^']{1,32}'|\[.*\]),\s*'fortran_order':\s*(?P<fortran>True|False),"
    r"\s*'shape':\s*\((?P<shape>(?:\d{1,18},\s*)*(?:\d{1,18})?)\),?\s*\}\s*",
    re.DOTALL,
)
_LONGEST_HEADER = 2**16  # bytes
_KINDS, _STRINGS = "?biufc", "US"  # of dtypes: bool, integers and other numbers; text and bytes
_MOST_STRINGS = 2**20
_CLASS, _LEGACY_CLASS = "polygraphy_class", "__polygraphy_encoded_ndarray"
Inputs = Mapping[str, torch.Tensor]
Arrays = Mapping[str, torch.Tensor | np.ndarray]


def load_inputs(path: str | os.PathLike[str]) -> tuple[Arrays, ...]:
    """Read the inputs of one or several calls of a program.

    Args:
        path: a file of one of these types, by its suffix:

            - `.npz`: the arrays of one call, as `numpy.savez(path, **inputs)` writes it.
            - `.safetensors`: the tensors of one call.
            - `.json`: a list of calls, each a dictionary of arrays, as Polygraphy writes it for `--save-inputs`.

    Returns:
        for each call, the tensors by name, and strings as NumPy's arrays.

    Raises:
        CompareError: the file can't be read, is damaged or too large, or contains Python objects. Nothing in it is
            unpickled.

    Example:
        >>> import numpy as np
        >>> from filch.compare import load_inputs
        >>> np.savez("inputs.npz", x=np.ones((2, 3), np.float32))
        >>> (inputs,) = load_inputs("inputs.npz")
        >>> inputs["x"].shape
        torch.Size([2, 3])
    """
    where = Path(path)
    reader = _READERS.get(where.suffix)
    if reader is None:
        raise CompareError(f"{str(where)!r} is no file of inputs: give one of {', '.join(_READERS)}")
    try:
        calls = reader(read_untrusted(where, budget_of("inputs of programs")))
        return tuple({name: _as_input(name, array) for name, array in call.items()} for call in calls)
    except OSError as error:
        raise CompareError(f"can't read {str(where)!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise CompareError(f"{str(where)!r} can't be used as inputs: {short_line(str(error))}") from error


def from_npz(contents: bytes) -> Inputs:
    """Return the arrays of a file of NumPy as tensors by name, in the order of the file.

    Raises:
        ValueError: it is damaged, or has strings or Python objects.
    """
    return {name: _as_tensor(name, array) for name, array in _npz(contents)[0].items()}


def _as_input(name: str, array: torch.Tensor | np.ndarray) -> torch.Tensor | np.ndarray:
    """Return numbers as a tensor, and strings as an array of Python's.

    Raises:
        ValueError: no tensor can hold the numbers, or there are too many strings.
    """
    if isinstance(array, torch.Tensor):
        return array
    if array.dtype.kind not in _STRINGS:
        return _as_tensor(name, array)
    if array.size > _MOST_STRINGS:  # each would be an object, of many times its bytes
        raise ValueError(f"{name!r} has {array.size:,} strings, and at most {_MOST_STRINGS:,} are read")
    try:
        return array.astype(object)
    except (SystemError, ValueError) as error:
        raise ValueError(f"{name!r} has text with characters that Unicode does not have") from error


def _as_tensor(name: str, array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor; raise a `ValueError` with its name if torch lacks the dtype."""
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ValueError(f"{name!r} is an array of {array.dtype}, which no tensor can hold") from error


_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError)  # of the archive, or of a member


def _npz(contents: bytes) -> tuple[Mapping[str, np.ndarray], ...]:
    """Return the arrays of a file of NumPy by name, in the order of the file, as the only call.

    Raises:
        ValueError: it is damaged, or has Python objects.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(contents)) as archive:
            members = archive.infolist()
            size, most = sum(member.file_size for member in members), _most_bytes(len(contents))
            if size > most:
                raise ValueError(f"it would take {size:,} bytes, and at most {most:,} are read of a file of this size")
            arrays = {member.filename: archive.read(member) for member in members}
    except (*_DAMAGED, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"it is not a file of numpy.savez: {error}") from error
    return ({name.removesuffix(".npy"): _from_npy(name, array) for name, array in arrays.items()},)


def _most_bytes(size: int) -> int:
    """Return how many bytes a file of this size may have when it is decompressed."""
    return max(size, min(size * _COMPRESSION, _LARGE)) + _SMALL


def _from_npy(name: str, contents: bytes) -> np.ndarray:
    """Return the array in the bytes of a `.npy` file, whose size has to be that of its data."""
    is_fortran, dtype, shape, begin = _npy_header(name, contents)
    size = len(contents) - begin
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name!r} is damaged: its shape is {shape} of {dtype}, and it has {size:,} bytes")
    flat = np.frombuffer(contents, dtype, offset=begin).copy()
    array = flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
    return np.ascontiguousarray(array.astype(dtype.newbyteorder("="))).reshape(shape)


def _npy_header(name: str, contents: bytes) -> tuple[bool, np.dtype[Any], tuple[int, ...], int]:
    """Return whether the order is Fortran's, the dtype, the shape, and where the data begin.

    NumPy evaluates the header, a dictionary, as Python's `literal_eval` does, for which an attacker can choose a
    nesting that no stack holds.
    """
    length = _HEADERS.get(contents[:8])
    begin = 0 if length is None else 8 + length.size
    if length is None or len(contents) < begin:
        raise ValueError(f"{name!r} is no NumPy array: its first bytes are {contents[:8]!r}")
    end = begin + int(length.unpack_from(contents, 8)[0])
    match = _HEADER.fullmatch(contents[begin : min(end, begin + _LONGEST_HEADER)].decode("latin-1"))
    if match is None or end > len(contents):
        raise ValueError(f"{name!r} is no NumPy array: its header is {contents[begin:end][:80]!r}")
    descr = match["descr"].strip("'")
    try:
        dtype = np.dtype("V" if descr.startswith("[") else descr)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"{name!r} is no NumPy array: it has the dtype {descr!r}") from error
    if dtype.hasobject:
        raise ValueError(f"{name!r} is an array of Python objects, which only a pickle can hold")
    if dtype.kind not in _KINDS + _STRINGS:
        raise ValueError(f"{name!r} is an array of {descr:.80}, which no tensor can hold")
    return match["fortran"] == "True", dtype, tuple(map(int, re.findall(r"\d+", match["shape"]))), end


def _from_polygraphy(contents: bytes) -> tuple[Arrays, ...]:
    """Return the arrays of each call in a file that Polygraphy's --save-inputs has written."""
    calls = parse_json(contents)
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) for call in calls):
        raise ValueError("it is not a list of dictionaries of arrays, as Polygraphy's --save-inputs writes it")
    return tuple({name: _polygraphy_array(name, item) for name, item in call.items()} for call in calls)


def _polygraphy_array(name: str, item: Any) -> np.ndarray:
    """Return an array: the base64 text of a `.npy` file, as polygraphy/json/serde.py encodes it."""
    if not isinstance(item, Mapping) or not (item.get(_CLASS) == "ndarray" or _LEGACY_CLASS in item):
        kind = repr(item.get(_CLASS)) if isinstance(item, Mapping) and _CLASS in item else type(item).__name__
        raise ValueError(f"{name!r} is of type {kind}, not an array that Polygraphy has written")
    try:
        contents = base64.b64decode(item.get("array", ""), validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"{name!r} is not encoded in base64: {error}") from error
    return _from_npy(name, contents)


# What returns the arrays of each call in the bytes of a file, by its suffix.
_READERS: Mapping[str, Callable[[bytes], tuple[Arrays, ...]]] = {
    ".npz": _npz,
    ".safetensors": lambda contents: (read_safetensors(bytearray(contents)),),
    ".json": _from_polygraphy,
}
