"""Read and write the fields of a protobuf message without parsing it into objects.

The parser of `protobuf` creates an object of over a hundred bytes for every two bytes of a repeated field, so a file of
1 MB can take 100 MB. Untrusted files are therefore scanned here, and only parts of limited size are parsed. For the
same reason, and for speed, the nodes of a dump are written without creating objects.
"""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

from .._errors import DumpError
from . import _format as form

Span = tuple[int, int]  # first byte, end

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 (groups) are deprecated and not in ONNX
_MAX_VARINT_BITS = 70  # bits of a varint
MOST_FIELDS = 10_000  # of a model, most of them entries of its metadata; other files may have a billion


def fields(data: bytes, start: int, stop: int, *, most: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Iterate over the length-delimited fields of the message in `data[start:stop]`, of at most `most` fields.

    Yields:
        the field number, the position of its tag, and the start and end of its contents.

    Raises:
        ValueError: this is not a valid message.
    """
    position = start
    left = stop if most is None else most  # without a limit: a field has at least one byte
    while position < stop:
        begin = position
        left -= 1
        if left < 0:
            raise ValueError("it has too many fields")
        tag, position = _read_varint(data, position, stop)
        wire_type = tag & 7
        if wire_type == _BYTES:
            length, position = _read_varint(data, position, stop)
            if length > stop - position:
                raise ValueError("it is truncated")
            yield tag >> 3, begin, position, position + length
            position += length
        elif wire_type == _VARINT:
            _, position = _read_varint(data, position, stop)
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"it has a field of unknown wire type {wire_type}")
    if position != stop:
        raise ValueError("it is truncated")


def graph_and_metadata(path: Path, model: bytes) -> tuple[Span, dict[str, Span]]:
    """Return the spans of a model's graph, and of the values of Filch's entries of `metadata_props`.

    Raises:
        DumpError: this is not a valid model, or it has an entry twice; the message contains `path`.
    """
    graphs: list[Span] = []
    props: dict[str, Span] = {}
    try:
        for number, _, start, stop in fields(model, 0, len(model), most=MOST_FIELDS):
            if number == form.GRAPH:
                graphs.append((start, stop))
            if number == form.METADATA:
                entry = {inner: span for inner, _, *span in fields(model, start, stop)}
                key = model[slice(*entry.get(form.ENTRY_KEY, (0, 0)))].decode()
                if key in props:
                    raise DumpError(f"{str(path)!r} is damaged: it has {key!r:.200} twice")
                if key.startswith("filch."):
                    first, end = entry.get(form.ENTRY_VALUE, (0, 0))
                    props[key] = first, end
        [graph] = graphs  # ValueError if there is none, or several
    except ValueError:
        raise DumpError(f"{str(path)!r} is not an ONNX file, or is truncated") from None
    return graph, props


def split(data: bytes, span: Span, number: int) -> tuple[bytes, Span]:
    """Return a message without its only field of this number, and the span of that field's contents.

    Raises:
        ValueError: this is not a valid message, or it has no or several such fields.
    """
    matches = (field for field in fields(data, *span) if field[0] == number)
    [(_, begin, start, stop)] = itertools.islice(matches, 2)  # there may be a million
    return data[span[0] : begin] + data[stop : span[1]], (start, stop)


def field(number: int, contents: bytes) -> bytes:
    """Return an encoded length-delimited field (a message, a string or bytes) with a number below 16."""
    return bytes((number << 3 | _BYTES,)) + varint(len(contents)) + contents


def field_of(number: int, parts: list[bytes]) -> list[bytes]:
    """Return the parts of a field whose contents are given in parts; see `field`."""
    return [bytes((number << 3 | _BYTES,)) + varint(sum(map(len, parts))), *parts]


@functools.lru_cache(maxsize=2**14)
def varint(value: int) -> bytes:
    """Return a number encoded as a varint."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it."""
    value = shift = 0
    while position < stop and shift < _MAX_VARINT_BITS:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:  # a set eighth bit means that more bytes follow
            return value, position
        shift += 7
    raise ValueError("it is truncated")
