"""Read files of safetensors: a header of JSON, followed by the numbers of all tensors."""

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import parse_json

_LENGTH = struct.Struct("<Q")  # of the header
_LONGEST = 100_000_000  # bytes of a header, as in the package safetensors
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F4": "float4_e2m1fn_x2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}


def read_safetensors(contents: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, in the order of their numbers, which they share with it.

    Args:
        contents: the bytes of the file, or a writable map of it.

    Raises:
        ValueError: it is no such file, is damaged, or has tensors that share numbers.
    """
    try:
        return dict(_tensors(contents))
    except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"it is no file of safetensors: {error}") from error


def _tensors(contents: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors; errors of any of the types that `read_safetensors` catches say what is damaged."""
    (length,) = _LENGTH.unpack(contents[: _LENGTH.size])
    begin = _LENGTH.size + length
    if begin > min(len(contents), _LONGEST):
        raise ValueError(f"its header is said to have {length:,} bytes")
    header = parse_json(contents[_LENGTH.size : begin])
    header.pop("__metadata__", None)
    budget_of("weights").take_items(len(header), "tensors")
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        if type(start) is not int or type(stop) is not int or not end <= start <= stop <= len(contents) - begin:
            raise ValueError(f"{name!r} is not after the tensor before it and in the file")
        yield name, _tensor(name, entry, contents, begin + start, stop - start)
        end = stop


def _tensor(name: str, entry: Mapping[str, Any], contents: Any, at: int, size: int) -> torch.Tensor:
    """Return a tensor that shares its numbers with the file.

    Args:
        name: its name.
        entry: its entry in the header: its dtype and shape.
        contents: the file.
        at: where its numbers begin.
        size: the number of their bytes.
    """
    dtype, shape = _dtype(entry["dtype"]), list(entry["shape"])
    if not all(type(dim) is int and dim >= 0 for dim in shape):
        raise ValueError(f"{name!r} has the shape {shape!r:.80}")
    if dtype.is_floating_point and entry["dtype"] == "F4" and shape:  # torch has two of these in an element
        shape[-1], odd = divmod(shape[-1], 2)
        size += odd  # an odd number of them does not fit
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name!r} has {size:,} bytes, which are not its shape {shape!r:.80} of {entry['dtype']}")
    if not size:
        return torch.empty(shape, dtype=dtype)
    bits = torch.frombuffer(contents, dtype=torch.uint8, count=size, offset=at)
    return (bits if at % dtype.itemsize == 0 else bits.clone()).view(dtype).reshape(shape)  # a copy is aligned


def _dtype(name: Any) -> torch.dtype:
    """Return the dtype of torch for a name in the header; raise a `ValueError` if there is none."""
    found: torch.dtype | None = getattr(torch, _DTYPES.get(name, ""), None) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"numbers of type {name!r:.80} are not known")
    return found
