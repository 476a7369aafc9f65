"""Estimates the memory that a parsed ONNX file will take, before anything parses it.

`protobuf` makes an object of a hundred bytes of every two bytes that say "an empty node", and onnx-ir one of two
kilobytes of that: a file of 10 MB can ask for 20 GB. So the file is walked once where it lies, and each field is
counted with about what will be made of it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from onnx import ModelProto

MEMORY = 768 * 2**20  # bytes that a graph may take, weights apart: 80,000 nodes with all that torch's exporter notes
DEEPEST = 16  # graphs inside of graphs

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4, groups, were given up before ONNX began
_LONGEST = 10  # bytes of a varint
_SHORT = 128  # bytes of a type that is remembered
# Bytes of what protobuf, onnx-ir and `Graph` make of one message, measured; `_MESSAGE` is any other.
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
_ENTRY = 300  # a pair of texts
_TEXTS = {"NodeProto.output": 700, "NodeProto.input": 200, "FunctionProto.input": 700}  # each a value, or a use of one
_TEXT = 60  # a text, without its characters
_NUMBER = 110  # a number of a list, in its own field
_PACKED = 48  # a number of one byte in a list whose numbers are in one field
_ENTRIES = frozenset({"StringStringEntryProto", "OperatorSetIdProto", "Dimension"})
_WEIGHTS = "TensorProto.raw_data"


class _Field(NamedTuple):
    """What becomes of one field.

    Attributes:
        once: bytes that it takes.
        each: bytes that each of its own bytes takes.
        inside: the fields of the message in it, by tag; None if it is none, or is counted as a whole.
        deeper: whether it is a graph.
        text: whether it is text, or a pair of texts, which is looked into only if it is not plain ASCII.
        same: whether it is a type, which many values have.
    """

    once: int
    each: int
    inside: "Mapping[int, _Field] | None" = None
    deeper: bool = False
    text: bool = False
    same: bool = False


def check_room(contents: bytes) -> None:
    """Refuse a model whose graph would take too much memory, or is nested too deep.

    Args:
        contents: of the file.

    Raises:
        ValueError: what is wrong with it.
    """
    _left(contents, _MODEL, MEMORY, {})


# One loop: a call for each field takes three times as long.
def _left(contents: bytes, fields: Mapping[int, _Field], left: int, types: dict[bytes, int]) -> int:  # noqa: C901, PLR0912
    """What a message leaves of the memory; `types` has what each short type took that was seen."""
    spans: list[tuple[int, int, Mapping[int, _Field], int]] = [(0, len(contents), fields, 0)]
    while spans:
        at, stop, known, depth = spans.pop()
        if depth > DEEPEST:
            raise ValueError(f"its graphs are nested more than {DEEPEST} deep")
        while at < stop:
            tag = contents[at]
            at += 1
            if tag > 127:
                tag, at = _varint(contents, at - 1)
            kind = tag & 7
            if kind == _BYTES:
                length = contents[at]
                at += 1
                if length > 127:
                    length, at = _varint(contents, at - 1)
                once, each, inside, deeper, text, same = known.get(tag, _UNKNOWN)
                left -= once + each * length
                if text and (part := contents[at : at + length]).isascii():
                    pass
                elif same and length < _SHORT:
                    part = contents[at : at + length]
                    if part not in types:
                        types[part] = left - _left(part, inside or {}, left, types)
                    left -= types[part]
                elif text and inside is None:
                    _check_text(part)  # pyright: ignore[reportPossiblyUnboundVariable]  `text` has read it above
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
    value = 0
    for shift in range(0, 7 * _LONGEST, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError


def _check_text(part: bytes) -> None:
    try:
        part.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"it has a text that is not UTF-8: {part!r:.80}") from None


def _fields(message: Descriptor, made: dict[str, dict[int, _Field]]) -> dict[int, _Field]:
    """The fields of a message that have a length, by tag."""
    if message.full_name in made:
        return made[message.full_name]
    found = made[message.full_name] = {}
    for field in message.fields:
        found[field.number << 3 | _BYTES] = _field(field, made)
    return found


def _field(field: FieldDescriptor, made: dict[str, dict[int, _Field]]) -> _Field:
    inner, holder = field.message_type, field.containing_type.name  # pyright: ignore[reportOptionalMemberAccess]  a message's
    if inner is not None:
        if inner.name in _ENTRIES:
            return _Field(_ENTRY, 1, _fields(inner, made), text=True)
        once = _MESSAGES.get(inner.name, _MESSAGE)
        return _Field(once, 0, _fields(inner, made), deeper=inner.name == "GraphProto", same=inner.name == "TypeProto")
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        name = f"{holder}.{field.name}"
        text = field.type == FieldDescriptor.TYPE_STRING
        return _Field(0, 0) if name == _WEIGHTS else _Field(_TEXTS.get(name, _TEXT), 1, text=text)
    return _Field(_NUMBER, 8 if holder == "TensorProto" else _PACKED)


_UNKNOWN = _Field(_TEXT, 1)
_MODEL = _fields(ModelProto.DESCRIPTOR, {})  # pyright: ignore[reportArgumentType]  either implementation
