"""The zip archive that torch.export writes, read without torch: stored members only, each within the file."""

import os
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import torch

from filch.steal import FilchError

_DIRECTORY = 8 * 2**20  # bytes of the list of members: about 50,000 of them
_CHUNK = 16 * 2**20  # bytes
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 0x1
_NAME = re.compile(r"[\w.@+-]+(?:/[\w.@+-]+)*")


class StoredError(FilchError):
    """A stored program that is damaged, or that holds something that is not read; the message is the reason."""


class Archive:
    """The members of an archive, by their names without the folder that holds all of them.

    torch writes members as they are, without compression; no other is read. So what is read never has more bytes than
    the file.

    Args:
        file: the archive; it is read while the object is in use.

    Raises:
        StoredError: it is no zip file, or one that torch does not write.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        self._members = self._listed()
        if self.get("byteorder", sys.byteorder.encode()) != sys.byteorder.encode():
            raise StoredError(f"its numbers are not {sys.byteorder}-endian")

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def size(self, name: str) -> int:
        """The size of a member, in bytes."""
        return self._member(name).file_size

    def get(self, name: str, default: bytes) -> bytes:
        """A member's contents, or `default` if there is none of this name."""
        return self.read(name) if name in self else default

    def read(self, name: str) -> bytes:
        """A member's contents."""
        return self.tensor(name).numpy().tobytes()

    def tensor(self, name: str) -> torch.Tensor:
        """A member's contents: a `uint8` tensor of one dimension, which owns its memory.

        Raises:
            StoredError: there is no such member, or it is damaged.
        """
        member = self._member(name)
        self._file.seek(member.header_offset)
        header = self._file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size:
            raise StoredError(f"its member {name!r} is damaged")
        signature, *lengths = _LOCAL_HEADER.unpack(header)
        begin = member.header_offset + _LOCAL_HEADER.size + sum(lengths)
        if signature != b"PK\3\4" or begin + member.file_size > self._size:
            raise StoredError(f"its member {name!r} is damaged")
        contents = torch.empty(member.file_size, dtype=torch.uint8)
        view = memoryview(contents.numpy())  # type: ignore[arg-type]
        self._file.seek(begin)
        done = 0
        while done < member.file_size and (chunk := self._file.read(min(_CHUNK, member.file_size - done))):
            view[done : done + len(chunk)] = chunk
            done += len(chunk)
        if done < member.file_size or zlib.crc32(view) != member.CRC:
            raise StoredError(f"its member {name!r} is damaged")
        return contents

    def _member(self, name: str) -> zipfile.ZipInfo:
        if name not in self._members:
            raise StoredError(f"it has no member {name!r}")
        return self._members[name]

    def _listed(self) -> Mapping[str, zipfile.ZipInfo]:
        try:
            with zipfile.ZipFile(_Listing(self._file)) as archive:
                members = archive.infolist()
        except StoredError:
            raise
        except Exception as error:  # zipfile raises whatever a damaged file makes it do
            raise StoredError("it is no zip file, or it is damaged") from error
        for member in members:
            if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
                raise StoredError(f"its member {member.filename!r:.200} is compressed, and torch compresses none")
            if member.flag_bits & _ENCRYPTED or not _is_plain(member.filename):
                raise StoredError(f"its member {member.filename!r:.200} is none that torch writes")
        if sum(member.file_size for member in members) > self._size:
            raise StoredError("its members together are larger than the file")
        found = dict(_relative(members))
        if len(found) < len(members):
            raise StoredError("two of its members have the same name")
        return found


def _is_plain(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not {".", ".."} & set(name.split("/"))


def _relative(members: list[zipfile.ZipInfo]) -> Iterator[tuple[str, zipfile.ZipInfo]]:
    """Each member with its name below the folder that all are in; up to torch 2.7 there was no such folder."""
    folders = {member.filename.partition("/")[0] for member in members}
    shared = f"{folders.pop()}/" if len(folders) == 1 else ""
    for member in members:
        yield member.filename.removeprefix(shared), member


class _Listing:
    """The file as `zipfile` reads its list of members; one that is too long is refused before it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _DIRECTORY:
            raise StoredError("it has too many members")
        return self._file.read(_DIRECTORY if size < 0 else size)
