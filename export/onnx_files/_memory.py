"""Estimate the memory that an ONNX file takes once it is parsed, before parsing it.

Two bytes can encode an empty node, for which `protobuf` creates an object of a hundred bytes and onnx-ir one of two
kilobytes, so that a file of 10 MB can take 20 GB. The estimate walks over the serialized bytes once and adds up the
approximate size of the objects for each field.
"""

from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from onnx import ModelProto

MEMORY = 768 * 2**20  # bytes for a graph without weights: 80,000 nodes with the metadata of torch's exporter
DEEPEST = 16  # nested graphs

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4, groups, are older than ONNX
_FLOATS = {FieldDescriptor.TYPE_FLOAT: _FIXED32, FieldDescriptor.TYPE_DOUBLE: _FIXED64}
_TEXT_TYPES = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_NO_NUMBERS = (FieldDescriptor.TYPE_MESSAGE, *_TEXT_TYPES)
_MOST_UNKNOWN = 10_000  # fields that no ONNX version known here has
_LONGEST = 10  # bytes of a varint
_SHORT = 128  # bytes of a type whose size is cached
# Measured bytes of the objects of protobuf, onnx-ir and `Graph` for one message; `_MESSAGE` is for any other message.
_MESSAGES = {
    "NodeProto": 1400,
    "ValueInfoProto": 850,
    "TypeProto": 100,
    "Tensor": 150,
    "TensorShapeProto": 150,
    "TensorProto": 1900,
    "FunctionProto": 4000,
    "GraphProto": 4000,
}
_MESSAGE = 600
_ENTRY = 300  # a pair of strings
_TEXTS = {"NodeProto.output": 700, "NodeProto.input": 200, "FunctionProto.input": 700}  # a value, or a use of one
_TEXT = 60  # a string, without its characters
_NUMBER = 110  # a number in a field of its own
_PACKED = 48  # a number of one byte in a packed list
_WEIGHT_NUMBER = 8  # a number of a weight, whose list becomes an array
_ENTRIES = frozenset({"StringStringEntryProto", "OperatorSetIdProto", "Dimension"})
_WEIGHTS = "TensorProto.raw_data"  # not counted: the limit is for a graph without weights


class _Field(NamedTuple):
    """The cost of one field.

    Attributes:
        once: bytes per field.
        each: bytes per byte of the field's contents.
        inside: the fields of its message, by tag; None if it is not a message, or is not walked.
        deeper: whether it is a graph.
        text: whether it is a string or a pair of strings, which is only checked if it is not ASCII.
        same: whether it is a type, whose cost is cached because many values share it.
    """

    once: int
    each: int
    inside: "Mapping[int, _Field] | None" = None
    deeper: bool = False
    text: bool = False
    same: bool = False


def check_room(contents: bytes) -> None:
    """Refuse a model whose graph would take too much memory, or is nested too deeply.

    Args:
        contents: the contents of the file.

    Raises:
        IndexError: it is no model, or is truncated.
        ValueError: the model is refused; the message has the reason.
    """
    _remaining(contents, _MODEL, MEMORY, {})


# One loop, because a function call for each field takes three times as long.
def _remaining(contents: bytes, fields: Mapping[int, _Field], left: int, types: dict[bytes, int]) -> int:  # noqa: C901, PLR0912, PLR0915
    """Return the memory that remains after a message.

    Each field begins with a tag: its number and its wire type. Messages in it are walked after it.

    Args:
        contents: the serialized message.
        fields: the fields of the message, by tag.
        left: the memory before it.
        types: caches the cost of short types.
    """
    # The messages that are still to be walked: where each begins and ends, its fields, and how deep its graph is.
    spans: list[tuple[int, int, Mapping[int, _Field], int]] = [(0, len(contents), fields, 0)]
    unknown = 0  # fields so far that are not known
    while spans:
        at, stop, known, depth = spans.pop()
        if depth > DEEPEST:
            raise ValueError(f"its graphs are nested more than {DEEPEST} deep")
        while at < stop:
            tag = contents[at]
            at += 1
            if tag > 127:
                tag, at = _varint(contents, at - 1)
            field = known.get(tag)
            if field is None:
                field, unknown = _UNKNOWN, unknown + 1
                if unknown > _MOST_UNKNOWN:
                    raise IndexError
            kind = tag & 7
            if kind == _BYTES:
                length = contents[at]
                at += 1
                if length > 127:
                    length, at = _varint(contents, at - 1)
                once, each, inside, deeper, text, same = field
                left -= once + each * length
                if text:
                    part = contents[at : at + length]
                    if not part.isascii() and inside is None:
                        _check_text(part)
                    elif not part.isascii():  # the strings of a pair are checked one by one
                        spans.append((at, at + length, inside or {}, depth))
                elif same and length < _SHORT:
                    part = contents[at : at + length]
                    if part not in types:
                        types[part] = left - _remaining(part, inside or {}, left, types)
                    left -= types[part]
                elif inside is not None:
                    spans.append((at, at + length, inside, depth + deeper))
                at += length
            elif kind == _VARINT:
                left -= _NUMBER
                while contents[at] > 127:
                    at += 1
                at += 1
            elif kind in (_FIXED64, _FIXED32):
                left -= _NUMBER
                at += 8 if kind == _FIXED64 else 4
            else:
                raise IndexError
            if left < 0:
                raise ValueError(f"its graph would take more than {MEMORY // 2**20} MB of memory")
        if at != stop:
            raise IndexError
    return left


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that is encoded at an offset, and the offset after it."""
    value = 0
    for shift in range(0, 7 * _LONGEST, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError


def _check_text(part: bytes) -> None:
    """Refuse a string that is not UTF-8."""
    try:
        part.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"it has a string that is not UTF-8: {part!r:.80}") from None


def _fields(message: Descriptor, cache: dict[str, dict[int, _Field]]) -> dict[int, _Field]:
    """Return the fields of a message, by tag; `cache` has those of the messages that were visited, by name."""
    if message.full_name in cache:
        return cache[message.full_name]
    fields = cache[message.full_name] = {}
    for field in message.fields:
        fields[field.number << 3 | _BYTES] = _field(field, cache)  # also of numbers: a packed list of them
        if field.type not in _NO_NUMBERS:
            fields[field.number << 3 | _FLOATS.get(field.type, _VARINT)] = _Field(_NUMBER, 0)
    return fields


def _field(field: FieldDescriptor, cache: dict[str, dict[int, _Field]]) -> _Field:
    """Return the cost of a field; `cache` has the fields of messages that were visited, by name."""
    inner, holder = field.message_type, field.containing_type.name  # pyright: ignore[reportOptionalMemberAccess]  a message's
    if inner is not None:
        if inner.name in _ENTRIES:
            return _Field(_ENTRY, 1, _fields(inner, cache), text=True)
        once = _MESSAGES.get(inner.name, _MESSAGE)
        return _Field(once, 0, _fields(inner, cache), deeper=inner.name == "GraphProto", same=inner.name == "TypeProto")
    if field.type in _TEXT_TYPES:
        name = f"{holder}.{field.name}"
        text = field.type == FieldDescriptor.TYPE_STRING
        return _Field(0, 0) if name == _WEIGHTS else _Field(_TEXTS.get(name, _TEXT), 1, text=text)
    return _Field(_NUMBER, _WEIGHT_NUMBER if holder == "TensorProto" else _PACKED)


_UNKNOWN = _Field(_TEXT, 1)
_MODEL = _fields(ModelProto.DESCRIPTOR, {})  # pyright: ignore[reportArgumentType]  either implementation
