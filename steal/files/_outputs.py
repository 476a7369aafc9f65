"""Writes files for users, and follows no link that somebody has put in their places."""

import errno
import os
from pathlib import Path


def write_output(path: str | os.PathLike[str], contents: str | bytes, *, errors: str = "strict") -> None:
    """Write a file, text as UTF-8.

    Args:
        path: of the file; a link within its folder or to a device is followed.
        contents: all of it.
        errors: what becomes of text that is no Unicode; see `str.encode`.

    Raises:
        OSError: the disk refuses, or the path is a link to a file of another folder; `strerror` is the reason.
    """
    where = Path(path)
    refuse_link_out(where)
    where.write_bytes(contents.encode("utf-8", errors) if isinstance(contents, str) else contents)


def refuse_link_out(path: Path) -> None:
    """Refuse to write to a link to a file of another folder: its name may have been guessed by somebody else.

    Raises:
        OSError: it is one; `strerror` says so.
    """
    if not path.is_symlink():
        return
    target = Path(os.path.realpath(path))
    if target.is_relative_to(path.parent.resolve()) or (target.exists() and not target.is_file()):
        return
    raise OSError(errno.ELOOP, f"it is a link to {str(target)!r:.200}, in another folder: name that file, or remove it")
