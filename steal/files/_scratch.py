"""Folders for what a process writes for itself; those that a killed process left are removed when the next one starts.

Each folder has a file that is locked as long as the process lives: a process number would not tell, as it may be
another container's, or be given again.
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
except ImportError:  # not on Windows: there, nothing tells whether a process lives
    fcntl = None  # type: ignore[assignment]

_PREFIX = "filch-"
_LOCK = "lock"


class Scratch:
    """A new folder that only this user may look into; a context manager, which removes it at the end.

    Attributes:
        path: the folder.

    Raises:
        OSError: there is no place for it.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            remove_leftovers(tempfile.gettempdir())
        self._root = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = _locked(self._root)
        self.path = self._root / "files"
        self.path.mkdir()

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self._root, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def _locked(root: Path) -> int | None:
    """Put a locked file into a folder; its name comes when it is locked, so that nobody takes it for a dead one's."""
    if fcntl is None:
        return None
    new = root / f"new-{_LOCK}"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(OSError):  # a network's file system may have no locks
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]  asked before where there is none
        new.rename(root / _LOCK)
    return lock


@functools.cache  # once for each place
def remove_leftovers(place: str) -> None:
    """Remove the folders at a place whose processes are gone."""
    if fcntl is None:
        return
    for entry in os.scandir(place):
        if entry.name.startswith(_PREFIX):
            with contextlib.suppress(OSError):
                _remove_if_left(Path(entry.path))


def _remove_if_left(root: Path) -> None:
    """Remove a folder of this user's whose lock nobody holds."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    lock = os.open(root / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]  asked before where there is none
        shutil.rmtree(root, ignore_errors=True)
    finally:
        os.close(lock)
