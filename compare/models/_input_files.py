"""Read the inputs of a program from a file: NumPy's `.npz`, `.safetensors`, or JSON in the format of Polygraphy."""

import base64
import binascii
import io
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from filch.steal import budget_of, parse_json, read_untrusted
from filch.steal.text import short_line

from ..common._errors import CompareError

_COMPRESSION = 60  # bytes of an array for each byte of the file; more is an attack, or hardly a test
_SMALL = 2**20  # bytes that any file may be decompressed to
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_CLASS, _LEGACY_CLASS = "polygraphy_class", "__polygraphy_encoded_ndarray"
Inputs = dict[str, torch.Tensor]


def load_inputs(path: str | os.PathLike[str]) -> tuple[Inputs, ...]:
    """Read the inputs of one or several calls of a program.

    Args:
        path: a file of one of these types, by its suffix:

            - `.npz`: the arrays of one call, as `numpy.savez(path, **inputs)` writes it.
            - `.safetensors`: the tensors of one call; needs the package `safetensors`.
            - `.json`: a list of calls, each a dictionary of arrays, as Polygraphy writes it for `--save-inputs`.

    Returns:
        for each call, the tensors by name.

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
        return reader(read_untrusted(where, budget_of("inputs of programs")))
    except OSError as error:
        raise CompareError(f"can't read {str(where)!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise CompareError(f"{str(where)!r} can't be used as inputs: {short_line(str(error))}") from error


def from_npz(contents: bytes) -> tuple[Inputs, ...]:
    """Return the arrays of a file of NumPy by name, in the order of the file, as the only call.

    Raises:
        ValueError: it is damaged, or has Python objects.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(contents)) as archive:
            members = archive.infolist()
            size, most = sum(member.file_size for member in members), len(contents) * _COMPRESSION + _SMALL
            if size > most:
                raise ValueError(f"it would take {size:,} bytes, and at most {most:,} are read of a file of this size")
            arrays = {member.filename: archive.read(member) for member in members}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"it is not a file of numpy.savez: {error}") from error
    return ({name.removesuffix(".npy"): _from_npy(name, array) for name, array in arrays.items()},)


def _from_npy(name: str, contents: bytes) -> torch.Tensor:
    """Return the array in the bytes of a `.npy` file, whose size has to be that of its data."""
    file = io.BytesIO(contents)
    try:
        shape, is_fortran, dtype = _HEADERS[npy.read_magic(file)](file)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{name!r} is no NumPy array: {error}") from error
    if dtype.hasobject:
        raise ValueError(f"{name!r} is an array of Python objects, which only a pickle can hold")
    size = len(contents) - file.tell()
    if any(dim < 0 for dim in shape) or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name!r} is damaged: its shape is {shape} of {dtype}, and it has {size:,} bytes")
    flat = np.frombuffer(contents, dtype, offset=file.tell()).copy()
    array = flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
    try:
        return torch.from_numpy(np.ascontiguousarray(array.astype(dtype.newbyteorder("="))).reshape(shape))
    except TypeError as error:
        raise ValueError(f"{name!r} is an array of {dtype}, which no tensor can hold") from error


def _from_safetensors(contents: bytes) -> tuple[Inputs, ...]:
    try:
        import safetensors  # noqa: PLC0415  optional
        import safetensors.torch  # noqa: PLC0415
    except ImportError:
        raise ValueError("it needs the package safetensors: pip install safetensors") from None
    try:
        return (safetensors.torch.load(contents),)
    except safetensors.SafetensorError as error:
        raise ValueError(f"it is no file of safetensors: {error}") from error


def _from_polygraphy(contents: bytes) -> tuple[Inputs, ...]:
    calls = parse_json(contents)
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) for call in calls):
        raise ValueError("it is not a list of dictionaries of arrays, as Polygraphy's --save-inputs writes it")
    return tuple({name: _polygraphy_array(name, item) for name, item in call.items()} for call in calls)


def _polygraphy_array(name: str, item: Any) -> torch.Tensor:
    """Return an array: the base64 text of a `.npy` file, as polygraphy/json/serde.py encodes it."""
    if not isinstance(item, Mapping) or not (item.get(_CLASS) == "ndarray" or _LEGACY_CLASS in item):
        kind = repr(item.get(_CLASS)) if isinstance(item, Mapping) and _CLASS in item else type(item).__name__
        raise ValueError(f"{name!r} is of type {kind}, not an array that Polygraphy has written")
    try:
        contents = base64.b64decode(item.get("array", ""), validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"{name!r} is not encoded in base64: {error}") from error
    return _from_npy(name, contents)


_READERS = {".npz": from_npz, ".safetensors": _from_safetensors, ".json": _from_polygraphy}
