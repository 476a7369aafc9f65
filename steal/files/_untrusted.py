"""Opens files of unknown origin: a regular file within limits, or an error of one sentence.

Every reader of a file that somebody else may have written opens it here: a FIFO or a device is refused at once, a file
that another file names lies in the same folder, and text is parsed only if the result fits in memory.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

LARGEST = 2**31  # bytes: what protobuf can hold, and more than any text
_MEMORY = 400 * 2**20  # bytes that parsed JSON may take
_MOST_GROWN = 16  # times as long as its text; a dump's index takes ten times

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# What opening must not do: wait for a writer, become the controlling terminal's reader, or change bytes (Windows).
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def open_untrusted(path: str | os.PathLike[str], *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading; anything else is refused without waiting.

    Args:
        path: the file.
        follow: open what a link points to; else a link is refused.

    Raises:
        OSError: there is no such file, it is a folder, a FIFO, a socket or a device, or it can't be read; `strerror` is
            the reason.
    """
    extra = _FLAGS | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    try:
        _check_regular(Path(path).stat(follow_symlinks=follow))  # first: to open a device may already do something
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra))  # noqa: SIM115  Path.open has no opener
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, str(error)) from error
    try:
        _check_regular(os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def _check_regular(found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind == stat.S_IFLNK:
        raise OSError(errno.ELOOP, "it is a link")
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a regular file")


def read_untrusted(path: str | os.PathLike[str], limit: int = LARGEST, *, follow: bool = True) -> bytes:
    """The contents of a regular file.

    Args:
        path: the file.
        limit: of its size, in bytes.
        follow: read what a link points to; else a link is refused.

    Raises:
        OSError: as `open_untrusted`, or the file is larger; `strerror` is the reason.
    """
    with open_untrusted(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {limit:,} are read")
        contents = file.read(size + 1)
    if len(contents) > size:
        raise OSError(errno.EINVAL, "it grows while it is read")
    return contents


def open_companion(path: str | os.PathLike[str], name: str) -> BinaryIO:
    """Open a file that another file names, if it is in the same folder or below.

    Args:
        path: the file that names it; where that is a link, its companions are beside the link, as for ONNX.
        name: its path relative to the folder of `path`.

    Raises:
        OSError: as `open_untrusted`; or the name is absolute or leads out of the folder, by itself or through a link,
            or the file has a further name elsewhere (a hard link); `strerror` is the reason.
    """
    folder, parts = Path(path).parent, Path(name.replace("\\", "/")).parts
    if not parts or ".." in parts or Path(name).is_absolute() or Path(name).drive or parts[0] == "/":
        raise OSError(errno.EPERM, f"{name!r:.200} is no name of a file in the folder")
    try:
        found = (folder / name).resolve()
        inside = found.is_relative_to(folder.resolve())
    except (ValueError, RuntimeError) as error:  # a null character; links in a circle
        raise OSError(errno.EINVAL, str(error)) from error
    if not inside:
        raise OSError(errno.EPERM, f"{name!r:.200} is a link out of the folder")
    file = open_untrusted(found, follow=False)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise OSError(errno.EPERM, f"{name!r:.200} is a hard link: the file has another name elsewhere")
    return file


def parse_json(text: str | bytes, *, memory: int = _MEMORY) -> Any:
    """What JSON text says.

    Args:
        text: the text; bytes are UTF-8.
        memory: how many bytes the result may take, as estimated from the text: a list of two characters takes 80 bytes.

    Raises:
        ValueError: it is no JSON, it is nested too deep, a number in it is too long, or the result would be too large.
    """
    if not isinstance(text, str):
        text = text.decode("utf-8")
    if (needed := _memory(text)) > memory:
        raise ValueError(
            f"it would take about {needed // 2**20:,} MB of memory, and at most {memory // 2**20:,} are spent"
        )
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError("a number in it has too many digits" if "digits" in str(error) else str(error)) from None


def parse_index(text: str | bytes) -> Any:
    """What JSON text says that may be long because there is much that it speaks of; see `parse_json`."""
    return parse_json(text, memory=max(_MEMORY, _MOST_GROWN * len(text)))


def _memory(text: str) -> int:
    """About how many bytes the parsed text takes at most: what CPython's containers, numbers and texts take."""
    return (
        len(text) * (1 if text.isascii() else 4)
        + text.count("{") * 200
        + text.count("[") * 90
        + text.count(",") * 80
        + text.count(":") * 80
    )


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
