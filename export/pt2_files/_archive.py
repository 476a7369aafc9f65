"""Read the zip archives of torch.export without torch; only uncompressed members are read."""

import os
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch

from filch.steal import FilchError

_DIRECTORY = 8 * 2**20  # bytes of the list of members, for about 50,000 members
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, and the lengths of the name and the extra field
_ENCRYPTED = 0x1
_NAME = re.compile(r"[\w.@+-]+(?:/[\w.@+-]+)*")


class StoredError(FilchError):
    """A saved program is damaged, or contains something that is refused; the message is the reason."""


class Archive:
    """The members of an archive, by their names without the common top-level folder.

    torch does not compress members, and compressed members are refused, so that reading never returns more bytes than
    the file has.

    Args:
        file: the archive, which must stay open while the object is in use.

    Raises:
        StoredError: the file is not a zip file, or not in torch's format.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file: Any = file  # `BinaryIO` declares no `readinto`
        self._size = file.seek(0, os.SEEK_END)
        self._members = self._read_members()
        if self.get("byteorder", sys.byteorder.encode()) != sys.byteorder.encode():
            raise StoredError(f"its numbers are not {sys.byteorder}-endian")

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def size(self, name: str) -> int:
        """Return the size of a member in bytes."""
        return self._member(name).file_size

    def get(self, name: str, default: bytes) -> bytes:
        """Return a member's contents, or `default` if there is no such member."""
        return self.read(name) if name in self else default

    def read(self, name: str) -> bytes:
        """Return a member's contents."""
        return self.tensor(name).numpy().tobytes()

    def tensor(self, name: str) -> torch.Tensor:
        """Return a member's contents as a `uint8` tensor of one dimension, which owns its memory.

        Raises:
            StoredError: there is no such member, or it is damaged.
        """
        member = self._member(name)
        self._file.seek(member.header_offset)
        header = self._file.read(_LOCAL_HEADER.size).ljust(_LOCAL_HEADER.size)  # cut short at the end of the file
        signature, *lengths = _LOCAL_HEADER.unpack(header)
        begin = member.header_offset + _LOCAL_HEADER.size + sum(lengths)  # after the name and the extra field
        if signature != b"PK\3\4" or begin + member.file_size > self._size:
            raise StoredError(f"its member {name!r} is damaged")
        contents = torch.empty(member.file_size, dtype=torch.uint8)
        view = memoryview(contents.numpy())  # type: ignore[arg-type]
        self._file.seek(begin)
        if self._file.readinto(view) < member.file_size or zlib.crc32(view) != member.CRC:
            raise StoredError(f"its member {name!r} is damaged")
        return contents

    def _member(self, name: str) -> zipfile.ZipInfo:
        """Return the entry of a member; refuse a name that does not exist."""
        if name not in self._members:
            raise StoredError(f"it has no member {name!r}")
        return self._members[name]

    def _read_members(self) -> Mapping[str, zipfile.ZipInfo]:
        """Return the entries by their names without the top-level folder."""
        members = stored_members(self._file)
        for name, member in members.items():
            if member.flag_bits & _ENCRYPTED or not _is_valid(name):
                raise StoredError(f"its member {name!r:.200} is encrypted or has an invalid name")
        folders = {name.partition("/")[0] for name in members}
        prefix = f"{folders.pop()}/" if len(folders) == 1 else ""  # torch up to 2.7 did not write a top-level folder
        return {name.removeprefix(prefix): member for name, member in members.items()}


def stored_members(file: BinaryIO) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a zip file by name, none of which is compressed, as torch writes them.

    Raises:
        StoredError: it is damaged, or has members that are compressed, larger than the file, or of the same name.
    """
    try:
        with zipfile.ZipFile(_LimitedFile(file)) as archive:
            members = archive.infolist()
    except StoredError:
        raise
    except Exception as error:  # for a damaged file, zipfile raises exceptions of any type
        raise StoredError("it is not a zip file, or it is damaged") from error
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise StoredError(f"its member {member.filename!r:.200} is compressed, which torch never does")
    if sum(member.file_size for member in members) > file.seek(0, os.SEEK_END):
        raise StoredError("its members together are larger than the file")
    by_name = {member.filename: member for member in members}
    if len(by_name) < len(members):
        raise StoredError("two of its members have the same name")
    return by_name


def _is_valid(name: str) -> bool:
    """Return whether the name of a member is a path inside of the archive."""
    return _NAME.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))


class _LimitedFile:
    """Wraps the file for `zipfile`, and refuses a list of members that is too long before reading it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Read bytes, as `zipfile` asks for them."""
        if size > _DIRECTORY:
            raise StoredError("it has too many members")
        return self._file.read(_DIRECTORY if size < 0 else size)
