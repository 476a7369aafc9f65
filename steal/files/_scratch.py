"""Temporary folders that are removed at the end, or by the next process after a kill.

Each folder contains a file that is locked while its process lives. A process number would not do: it can belong to
another container, or be reused.
"""

import contextlib
import functools
import os
import shutil
import stat
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, folders of killed processes stay
    fcntl = None  # type: ignore[assignment]

_PREFIX = "filch-"
_LOCK = "lock"


class Scratch:
    """A new folder that only this user can read; a context manager that removes it at the end.

    Attributes:
        path: the folder.

    Raises:
        OSError: the folder can't be created.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            remove_leftovers(tempfile.gettempdir())
        self._root = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = _create_lock(self._root)
        self.path = self._root / "files"
        self.path.mkdir()

    def remove(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self._root, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def _create_lock(root: Path) -> int | None:
    """Create a locked file in a folder; renamed to `lock` only once locked, as `remove_leftovers` tests that name."""
    if fcntl is None:
        return None
    new = root / f"new-{_LOCK}"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(OSError):  # network file systems may not support locks
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]  fcntl is not None here
        new.rename(root / _LOCK)
    return lock


@functools.cache  # once per process and directory
def remove_leftovers(directory: str) -> None:
    """Remove the folders in a directory whose processes have ended."""
    if fcntl is None:
        return
    for entry in os.scandir(directory):
        if entry.name.startswith(_PREFIX):
            with contextlib.suppress(OSError):
                _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(root: Path) -> None:
    """Remove a folder of this user unless its lock is held or missing; then raise OSError."""
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock = os.open(root / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]  fcntl is not None here
        shutil.rmtree(root, ignore_errors=True)
    finally:
        os.close(lock)
