"""Open files of unknown origin safely: regular files within limits, or an error.

All readers of files that somebody else may have written use this module. FIFOs and devices are refused without
waiting, a file named by another file must be in the same folder, and JSON is parsed only if the result fits in memory.
"""

import errno
import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from .._errors import FilchError

MAX_FILE_SIZE = 2**31  # bytes; the limit of protobuf, and enough for any text
_MAX_MEMORY = 400 * 2**20  # bytes for parsed JSON
_MAX_GROWTH = 16  # memory of a parsed index relative to its text; a dump's index takes a factor of ten

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Opening must not wait for a writer, make the file the controlling terminal, or translate line ends (Windows).
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def open_untrusted(path: str | os.PathLike[str], *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading; refuse anything else without waiting.

    Args:
        path: the file.
        follow: follow a link; else a link is refused.

    Raises:
        OSError: the file doesn't exist, can't be read, or is a folder, a FIFO, a socket or a device; `strerror` is the
            reason.
    """
    extra = _FLAGS | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    try:
        _check_regular(Path(path).stat(follow_symlinks=follow))  # before opening, as that can affect a device
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra))  # noqa: SIM115  Path.open has no opener
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, str(error)) from error
    try:
        _check_regular(os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def _check_regular(status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind == stat.S_IFLNK:
        raise OSError(errno.ELOOP, "it is a link")
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a regular file")


def read_untrusted(path: str | os.PathLike[str], limit: int = MAX_FILE_SIZE, *, follow: bool = True) -> bytes:
    """Return the contents of a regular file.

    Args:
        path: the file.
        limit: the largest size in bytes.
        follow: follow a link; else a link is refused.

    Raises:
        OSError: see `open_untrusted`; or the file is larger than `limit`. `strerror` is the reason.
    """
    with open_untrusted(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {limit:,} are read")
        contents = file.read(size + 1)
    if len(contents) > size:
        raise OSError(errno.EINVAL, "it grows while it is read")
    return contents


def read_toml(path: str | os.PathLike[str], limit: int) -> dict[str, Any]:
    """Return the contents of a TOML file.

    Args:
        path: the file.
        limit: the largest size in bytes.

    Raises:
        FilchError: the file can't be read, is no TOML, or is nested too deeply.
    """
    name = os.fspath(path)
    try:
        return tomllib.loads(read_untrusted(path, limit).decode("utf-8"))
    except OSError as error:
        raise FilchError(f"can't read {name!r}: {error.strerror or error}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise FilchError(f"{name!r} is not a TOML file: {error}") from error
    except RecursionError:
        raise FilchError(f"{name!r} is not a TOML file that can be read: it is nested too deeply") from None


def open_companion(path: str | os.PathLike[str], name: str) -> BinaryIO:
    """Open a file that another file refers to, if it is in the same folder or below.

    Args:
        path: the file with the reference. If it is a link, the companion is beside the link, as for ONNX.
        name: its path relative to the folder of `path`.

    Raises:
        OSError: see `open_untrusted`; or the name is absolute or leads out of the folder, by itself or through a link;
            or the file has another name elsewhere (a hard link). `strerror` is the reason.
    """
    folder, parts = Path(path).parent, Path(name.replace("\\", "/")).parts
    if not parts or ".." in parts or Path(name).is_absolute() or Path(name).drive or parts[0] == "/":
        raise OSError(errno.EPERM, f"{name!r:.200} is not the name of a file in the folder")
    try:
        file_path = (folder / name).resolve()
        inside = file_path.is_relative_to(folder.resolve())
    except (ValueError, RuntimeError) as error:  # a null character; circular links
        raise OSError(errno.EINVAL, str(error)) from error
    if not inside:
        raise OSError(errno.EPERM, f"{name!r:.200} is a link out of the folder")
    file = open_untrusted(file_path, follow=False)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise OSError(errno.EPERM, f"{name!r:.200} is a hard link: the file has another name elsewhere")
    return file


def parse_json(text: str | bytes, *, memory: int = _MAX_MEMORY) -> Any:
    """Parse JSON text.

    Args:
        text: the text; bytes are UTF-8.
        memory: the limit of the result's memory in bytes, estimated from the text before parsing.

    Raises:
        ValueError: the text is not JSON, is nested too deep, has a too long number, or the result would be too large.
    """
    if not isinstance(text, str):
        text = text.decode("utf-8")
    if (needed := _estimate_memory(text)) > memory:
        raise ValueError(
            f"it would take about {needed // 2**20:,} MB of memory, and the limit is {memory // 2**20:,} MB"
        )
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        if "digits" in str(error):
            raise ValueError("a number in it has too many digits") from None
        raise


def parse_index(text: str | bytes) -> Any:
    """Parse JSON text whose memory limit grows with its length, for the index of a large dump; see `parse_json`."""
    return parse_json(text, memory=max(_MAX_MEMORY, _MAX_GROWTH * len(text)))


def _estimate_memory(text: str) -> int:
    """Return an upper bound of the memory of the parsed text, from the sizes of CPython's objects."""
    return (
        len(text) * (1 if text.isascii() else 4)
        + text.count("{") * 200
        + text.count("[") * 90
        + text.count(",") * 80
        + text.count(":") * 80
    )


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
