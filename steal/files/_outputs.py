"""Write files for users: whole or not at all, and without following links that somebody else may have placed."""

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .._errors import FilchError, os_error_reason
from ._kinds import budget_of
from ._untrusted import read_untrusted

_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def writing(path: str | os.PathLike[str], error: type[FilchError] = FilchError) -> Iterator[None]:
    """Raise an error that names the file, the reason and, if there is no room, the disk, if the block raises OSError.

    If the block raises, the folders that it has created for the file are removed as far as they are empty.

    Args:
        path: of the file or folder that the block writes.
        error: the class of the error.
    """
    missing = [place for place in (Path(path), *Path(path).absolute().parents) if not os.path.lexists(place)]
    try:
        yield
    except BaseException as failure:
        problem = write_problem(failure, path) if isinstance(failure, OSError) else ""
        for folder in missing:
            with suppress(OSError, ValueError):  # a null character
                folder.rmdir()
        if problem:
            raise error(f"can't write {os.fspath(path)!r}: {problem}") from failure
        raise


def has_no_room(error: BaseException) -> bool:
    """Return whether a file could not be written as its disk, or a limit of the process, has no room for it."""
    return isinstance(error, OSError) and error.errno in {*_FULL, errno.EFBIG}


def write_problem(error: Exception, path: str | os.PathLike[str] | None) -> str:
    """Return why a file can't be written, with the disk and what is free on it if it has no room.

    Args:
        error: from writing.
        path: of the file or a folder above it; None for a temporary file.
    """
    reason = os_error_reason(error)
    if not isinstance(error, OSError) or error.errno not in _FULL:
        return reason
    return f"{reason}: {free_space(tempfile.gettempdir() if path is None else path)}"


def free_space(path: str | os.PathLike[str]) -> str:
    """Return how much is free on the disk of a file or folder, in words that name the disk."""
    folder = Path(path).absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    mount = next(place for place in (folder, *folder.parents) if place.is_mount() or place == place.parent)
    return f"{shutil.disk_usage(folder).free:,} bytes are free on the disk of {str(mount)!r}"


def write_output(path: str | os.PathLike[str], contents: str | bytes, *, errors: str = "strict") -> None:
    """Write a file, text as UTF-8. It is replaced once all is written, so that it stays as it was if that fails.

    Args:
        path: of the file. A link is followed only within its folder, or to a device.
        contents: the new contents.
        errors: how to handle text that can't be encoded; see `str.encode`.

    Raises:
        OSError: the file can't be written, or the path is a link to another folder; `strerror` is the reason.
    """
    file = Path(path)
    refuse_link_out(file)
    encoded = contents.encode("utf-8", errors) if isinstance(contents, str) else contents
    target = Path(os.path.realpath(file))
    if file.exists() and not (file.is_file() and os.access(target.parent, os.W_OK)):
        file.write_bytes(encoded)  # a device, or a file in a folder that can't be changed
        return
    with replacing(target) as new:
        new.write_bytes(encoded)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file in the same folder that takes the place of `path` at the end of the block.

    If the block raises, nothing has changed.

    Raises:
        OSError: the file can't be created or replaced.
    """
    new = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        with suppress(FileNotFoundError):
            new.chmod(path.stat().st_mode & 0o777)
        yield new
        new.replace(path)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


@contextmanager
def new_files(folder: Path, last: str = "") -> Iterator[Path]:
    """Yield an empty folder on the same disk whose files are moved to `folder` at the end of the block.

    If the block raises, nothing has changed, except that `folder` is created; `writing` removes it.

    Args:
        folder: it is created if it is missing.
        last: the name of the file that is moved last: the one that names the others.

    Raises:
        OSError: a file can't be written, or would replace something else than a file; `strerror` is the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".filch-", dir=folder) as name:
        yield Path(name)
        files = sorted(Path(name).iterdir(), key=lambda file: file.name == last)
        places = [folder / file.name for file in files]
        for place in places:
            refuse_link_out(place)
            if place.exists() and not place.is_file():
                raise OSError(errno.EEXIST, f"{place.name!r} exists and is not a file")
        for file, place in zip(files, places, strict=True):
            file.replace(os.path.realpath(place))


def refuse_foreign(folder: Path, names: Collection[str], mark: tuple[str, str]) -> None:
    """Raise an error if a folder has a file that would be replaced and that Filch did not write.

    Args:
        folder: it need not exist. Links in it are `refuse_link_out`'s.
        names: of the files that will be written.
        mark: the name of the one that tells who wrote them all, and text that Filch writes into it.

    Raises:
        OSError: there is such a file, or it can't be read; `strerror` is the reason.
    """
    there = sorted(name for name in names if (folder / name).is_file() and not (folder / name).is_symlink())
    name, text = mark
    if there and text.encode() not in (read_untrusted(folder / name, budget_of("report")) if name in there else b""):
        raise OSError(errno.EEXIST, f"it has a file {there[0]!r} that Filch did not write: name another folder")


def refuse_link_out(path: Path) -> None:
    """Raise an error if a path is a link to a file of another folder, which somebody else may have created.

    Raises:
        OSError: the path is such a link; `strerror` is the reason.
    """
    if not path.is_symlink():
        return
    target = Path(os.path.realpath(path))
    # Links within the folder, and to what is no file, such as a device, are followed.
    if target.is_relative_to(os.path.realpath(path.parent)) or (target.exists() and not target.is_file()):
        return
    raise OSError(errno.ELOOP, f"it is a link to {str(target)!r:.200}, in another folder: name that file, or remove it")
