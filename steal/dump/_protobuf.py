"""Finds the parts of a protobuf message where they lie, and puts parts together.

The parser of `protobuf` makes an object of a hundred bytes and more of every two bytes that a file repeats: one of 1 MB
can have it take 100 MB. So a file of unknown origin is walked here, and the parser sees parts of a known size. For the
same reason, and for time, a dump's million nodes are written without an object for each.
"""

import functools
import itertools
from collections.abc import Iterator

Span = tuple[int, int]  # first byte, and the one after the last

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # 3 and 4, groups, were given up before ONNX began
_LONGEST = 70  # bits of a varint


def fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of the message at `start:stop` that have a length, in order.

    Yields:
        the field's number, where it begins, and where its contents begin and end.

    Raises:
        ValueError: this is no message, or it is cut short.
    """
    at = start
    while at < stop:
        begin = at
        tag, at = _read(data, at, stop)
        kind = tag & 7
        if kind == _BYTES:
            length, at = _read(data, at, stop)
            if length > stop - at:
                raise ValueError("it is cut short")
            yield tag >> 3, begin, at, at + length
            at += length
        elif kind == _VARINT:
            _, at = _read(data, at, stop)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("it has a part of an unknown kind")
    if at != stop:
        raise ValueError("it is cut short")


def split(data: bytes, span: Span, number: int) -> tuple[bytes, Span]:
    """A message without its one field of this number, and where the contents of that field are.

    Raises:
        ValueError: this is no message, or has none or several such fields.
    """
    found = (field for field in fields(data, *span) if field[0] == number)
    [(_, begin, start, stop)] = itertools.islice(found, 2)  # there may be a million
    return data[span[0] : begin] + data[stop : span[1]], (start, stop)


def field(number: int, contents: bytes) -> bytes:
    """A field that has a length (a message, text or bytes), of a number below 16."""
    return bytes((number << 3 | _BYTES,)) + varint(len(contents)) + contents


@functools.lru_cache(maxsize=2**14)
def varint(value: int) -> bytes:
    """A number as a varint."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read(data: bytes, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop and shift < _LONGEST:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # the eighth bit says that there is more
            return value, at
        shift += 7
    raise ValueError("it is cut short")
