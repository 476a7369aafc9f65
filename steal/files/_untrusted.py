"""Open files of unknown origin safely: regular files within limits, or an error.

All readers of files that somebody else may have written use this module. FIFOs and devices are refused without
waiting, a file named by another file must be in the same folder, and JSON and TOML are parsed only if the result fits
in memory. What a file may cost is counted by a `Budget`, whose limits `_kinds.py` has.
"""

import contextlib
import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from .._errors import FilchError
from ._budget import Budget, LimitError
from ._kinds import budget_of

_MAX_MEMORY = 400 * 2**20  # bytes for parsed JSON

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
    descriptor = open_descriptor(path, os.O_RDONLY, follow=follow)
    return open(path, "rb", opener=lambda *_: descriptor)  # so that it has a name


def open_descriptor(path: str | os.PathLike[str], flags: int, *, follow: bool = True) -> int:
    """Open a regular file as `os.open` does with `flags`; see `open_untrusted`."""
    extra = _FLAGS | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    try:
        _check_regular(Path(path).stat(follow_symlinks=follow))  # before opening, as that can affect a device
        file = os.open(path, flags | extra)
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, str(error)) from error
    try:
        _check_regular(os.fstat(file))  # as it may have been replaced in between
    except OSError:
        os.close(file)
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


@contextlib.contextmanager
def reopened(file: BinaryIO) -> Iterator[str]:
    """Provide a path by which a library opens the same file again, whatever was put in its place since."""
    path = f"/proc/self/fd/{file.fileno()}"
    yield path if os.path.exists(path) else os.fspath(file.name)  # noqa: PTH110  Linux has such paths


def read_untrusted(path: str | os.PathLike[str], budget: Budget, *, follow: bool = True) -> bytes:
    """Return the contents of a regular file.

    Args:
        path: the file.
        budget: counts its bytes.
        follow: follow a link; else a link is refused.

    Raises:
        OSError: see `open_untrusted`; or the file is too large. `strerror` is the reason.
    """
    with open_untrusted(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            budget.take_bytes(size)
        except LimitError as error:
            raise OSError(errno.EFBIG, str(error)) from error
        contents = file.read(size + 1)
    if len(contents) > size:
        raise OSError(errno.EINVAL, "it grows while it is read")
    return contents


def read_lines(file: BinaryIO, budget: Budget) -> Iterator[bytes]:
    """Yield the lines of an open file with their ends, and count them and the bytes of the file.

    Raises:
        LimitError: there are too many, or one is too long.
    """
    longest = budget.kind.line
    budget.take_bytes(os.fstat(file.fileno()).st_size)
    while line := file.readline(longest + 1):
        if len(line) > longest:
            raise LimitError(f"it has a line of more than {longest:,} bytes")
        budget.take_items(what="lines")
        yield line


def read_toml(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Return the contents of a TOML file.

    Args:
        path: the file.
        kind: the name of its kind, which says what reading it may cost.

    Raises:
        FilchError: the file can't be read, is no TOML, is nested too deep, has an integer of more than 64 bits, as TOML
            does not, or exceeds a limit.
    """
    name, budget = os.fspath(path), budget_of(kind)
    try:
        text = read_untrusted(path, budget).decode("utf-8")
        _check_toml(text, budget)
        table = tomllib.loads(text)
        _check_values(table, budget)
    except OSError as error:
        raise FilchError(f"can't read {name!r}: {error.strerror or error}") from error
    except LimitError as error:
        raise FilchError(f"{name!r} can't be read as {kind}: {error}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise FilchError(f"{name!r} is not a TOML file: {_DIGITS if _has_too_many_digits(error) else error}") from error
    except RecursionError:
        raise FilchError(f"{name!r} is not a TOML file that can be read: it is nested too deeply") from None
    return table


def _check_toml(text: str, budget: Budget) -> None:
    """Refuse text for which `tomllib` takes too much memory or time, which grows with the square of a key's parts."""
    bare = _TOML_TEXT.sub("", text)
    needed = _estimate_memory(text, bare) + bare.count("=") * 300 + bare.count(".") * 600
    if needed > budget.kind.memory:
        raise _too_much_memory(needed, budget.kind.memory)
    parts = [(line.count(".") + 1, line.lstrip().startswith("[")) for line in bare.split("\n")]
    longest = max((count for count, is_header in parts if is_header), default=0)
    budget.take_steps(sum(count * (count + longest) for count, _ in parts), "its dotted keys")


def _check_values(table: dict[str, Any], budget: Budget) -> None:
    """Count the values of a table, and refuse large integers."""
    pending: list[tuple[Any, int]] = [(table, 0)]
    while pending:
        value, depth = pending.pop()
        budget.take_items(what="values")
        budget.check_depth(depth)
        if type(value) is int and value.bit_length() > _INTEGER_BITS:
            raise LimitError("an integer in it has more than 64 bits")
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        pending += [(item, depth + 1) for item in items]


# The strings and comments of TOML, from left to right; those that do not end, which TOML forbids, go on to the end.
_TOML_TEXT = re.compile(
    r""""{3}(?:[^"\\]++|\\.|"(?!""))*+(?:"{3})?|'{3}.*?(?:'{3}|\Z)|"(?:[^"\\\n]++|\\.)*+"?|'[^'\n]*'?|#[^\n]*""",
    re.DOTALL,
)
_INTEGER_BITS = 63  # and a sign


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
        file_path = Path(os.path.realpath(folder / name))
        inside = file_path.is_relative_to(os.path.realpath(folder))
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
    if (needed := _estimate_memory(text, text)) > memory:
        raise _too_much_memory(needed, memory)
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        if _has_too_many_digits(error):
            raise ValueError(_DIGITS) from None
        raise


def _estimate_memory(text: str, bare: str) -> int:
    """Return an upper bound of the memory of the parsed text, from the sizes of CPython's objects.

    Args:
        text: the whole text.
        bare: the part of it that may have brackets and commas with a meaning.
    """
    return (
        len(text) * (1 if text.isascii() else 4)
        + bare.count("{") * 200
        + bare.count("[") * 90
        + bare.count(",") * 80
        + bare.count(":") * 80
    )


def _too_much_memory(needed: int, limit: int) -> LimitError:
    return LimitError(f"it would take about {needed // 2**20:,} MB of memory, and the limit is {limit // 2**20:,} MB")


_DIGITS = "a number in it has too many digits"


def _has_too_many_digits(error: ValueError) -> bool:
    """Whether Python refuses an integer for its length; its message advises on a setting of the interpreter."""
    return "digits" in str(error)


def _refuse_constant(constant: str) -> NoReturn:  # NaN or an infinity, which Python's parser would accept
    raise ValueError(f"{constant} is not JSON")
