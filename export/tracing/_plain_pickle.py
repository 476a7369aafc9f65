"""Read a pickle of dictionaries, lists, strings and numbers, and refuse any other before it is unpickled."""

import io
import pickle
import pickletools
from typing import Any, NoReturn

from .._errors import TraceError

# The allowed opcodes, and about how many bytes CPython needs for the result of each. Tuples are not allowed, because a
# file could choose many with the same hash; neither are the opcodes of Python 2 and protocol 0.
_MEMORY = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), 0),
    **dict.fromkeys(("MARK", "APPEND", "APPENDS", "NONE", "NEWTRUE", "NEWFALSE"), 40),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), 40),
    **dict.fromkeys(("MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"), 40),
    **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SETITEM", "SETITEMS"), 80),
    "EMPTY_LIST": 90,
    "EMPTY_DICT": 240,
}
_LENGTHS = {"SHORT_BINUNICODE": 1, "BINUNICODE": 4, "BINUNICODE8": 8, "LONG1": 1}  # size of the length field in bytes
_MAX_NUMBER = 7  # bytes of a number: with 8, a file could choose many numbers with the same hash
_CALLS = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"}
_CALLS |= {"PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4"}


# By opcode: its bytes in the file, with its argument or the length of its argument, and its bytes in memory.
_OPCODES = {
    ord(item.code): (1 + _LENGTHS.get(item.name, item.arg.n if item.arg else 0), _MEMORY[item.name])
    for item in pickletools.opcodes
    if item.name in _MEMORY
}
_NAMES = {ord(item.code): item.name for item in pickletools.opcodes}
_VARIABLE_LENGTH = {code: name for code, name in _NAMES.items() if name in _LENGTHS}
_STOP, _PUT = ord(pickle.STOP), ord(pickle.LONG_BINPUT)


def load_plain(content: bytes, memory: int) -> Any:
    """Load a pickle of protocol 1 or later that contains only plain values.

    Args:
        content: the pickle.
        memory: how many bytes the content and the values may take together, as estimated from the opcodes.

    Raises:
        TraceError: it has other values, needs more memory, or is truncated; the caller adds the file to the message.
        Exception: it is damaged in another way; any error of `pickle`.
    """
    _check(content, memory)
    return _Unpickler(io.BytesIO(content)).load()


class _Unpickler(pickle.Unpickler):
    """Imports nothing, even if `_check` misses an opcode that imports."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse to import a class."""
        raise TraceError(f"asks for {module_name}.{global_name}")


def _check(content: bytes, memory: int) -> None:
    """Check the opcodes one by one without executing them."""
    offset, code, available = 0, -1, memory - len(content)
    while available >= 0 and code != _STOP:
        code = content[offset] if offset < len(content) else -1
        if code not in _OPCODES:
            raise TraceError(_refusal(content, offset))
        size, needed = _OPCODES[code]
        end = offset + size
        available -= needed
        if code in _VARIABLE_LENGTH:
            start, end = end, end + int.from_bytes(content[offset + 1 : end], "little")
            available -= _argument_memory(_VARIABLE_LENGTH[code], content[start:end], end - start, offset)
        elif code == _PUT and int.from_bytes(content[offset + 1 : end], "little") > offset:
            raise TraceError(f"is damaged: byte {offset} numbers a value as if more preceded it than do")
        offset = end
    if available < 0:
        raise TraceError(f"would take more than {memory // 2**20:,} MB of memory; if it may, say so with memory=…")


def _argument_memory(opcode: str, argument: bytes, length: int, offset: int) -> int:
    """Return about how many bytes the value of an argument takes in memory, and check its length.

    Args:
        opcode: the name of the opcode.
        argument: the bytes of the argument, fewer than `length` at the end of the file.
        length: its length as the file states it.
        offset: where the opcode is in the file.
    """
    if len(argument) < length:
        raise TraceError("is cut short")
    if opcode == "LONG1" and length > _MAX_NUMBER:
        raise TraceError(f"has a number of {length} bytes (byte {offset}), and at most {_MAX_NUMBER} are read")
    return length if argument.isascii() else 4 * length  # a string with other characters has up to 4 bytes for each


def _refusal(content: bytes, offset: int) -> str:
    """Return why an opcode is refused."""
    if offset >= len(content):
        return "is cut short"
    name = _NAMES.get(content[offset])
    if name is None:
        return f"is damaged: byte {offset} is not an opcode"
    if name in _CALLS:
        return f"asks for {name} (byte {offset}), which may run anything; a trace needs plain values alone"
    return f"asks for {name} (byte {offset}); a trace needs dictionaries, lists, texts and numbers alone"
