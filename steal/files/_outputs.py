"""Write files for users without following links that somebody else may have placed."""

import errno
import os
from pathlib import Path


def write_output(path: str | os.PathLike[str], contents: str | bytes, *, errors: str = "strict") -> None:
    """Write a file, text as UTF-8.

    Args:
        path: of the file. A link is followed only within its folder, or to a device.
        contents: the new contents.
        errors: how to handle text that can't be encoded; see `str.encode`.

    Raises:
        OSError: the file can't be written, or the path is a link to another folder; `strerror` is the reason.
    """
    file = Path(path)
    refuse_link_out(file)
    file.write_bytes(contents.encode("utf-8", errors) if isinstance(contents, str) else contents)


def refuse_link_out(path: Path) -> None:
    """Raise an error if a path is a link to a file of another folder, which somebody else may have created.

    Raises:
        OSError: the path is such a link; `strerror` is the reason.
    """
    if not path.is_symlink():
        return
    target = Path(os.path.realpath(path))
    if target.is_relative_to(path.parent.resolve()) or (target.exists() and not target.is_file()):
        return
    raise OSError(errno.ELOOP, f"it is a link to {str(target)!r:.200}, in another folder: name that file, or remove it")
