"""Temporary folders that are removed at the end, or by the next process after a kill.

Each folder contains a file that is locked while its process lives. A process number would not do: it can belong to
another container, or be reused. The file also says that Filch has made this very folder: others may have the name and
a lock, or be a copy of one, and are nobody's to remove.
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
_MARK_SIZE = 4096  # bytes; more than a mark has


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
    """Create a locked file in a folder; it gets its mark only once locked, as `remove_leftovers` tests for that."""
    if fcntl is None:
        return None
    lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(OSError):  # network file systems may not support locks
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]  fcntl is not None here
        os.write(lock, _mark(root))
    return lock


def _mark(root: Path) -> bytes:
    """Return the contents of the lock of a folder, which those of no other one have."""
    status = root.lstat()
    return f"Filch made the folder {root.name} ({status.st_dev}:{status.st_ino}), and removes it.\n".encode()


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
    """Remove a folder that Filch made for this user, unless its lock is held or missing; then raise OSError."""
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock = os.open(root / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]  fcntl is not None here
        if os.read(lock, _MARK_SIZE) == _mark(root):
            shutil.rmtree(root, ignore_errors=True)
    finally:
        os.close(lock)
