"""The files of a dump, finished or not, and how they come to their places.

While a capture runs, its bytes are in `.NAME.<random>.data` and what is known of them in `.NAME.<random>.journal`,
beside the dump to be. At the end the data gets a second name, `NAME.data` (or `NAME.1.data` …, one that nobody has),
and the model is written under a name of its own and renamed: a dump that is there is whole, and one that was there
before stays until then. The two drafts go last. So after a kill, at whatever moment, either the new dump is there or
its drafts are.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from google.protobuf.message import DecodeError
from onnx import NodeProto, StringStringEntryProto

from ..files._untrusted import read_untrusted
from . import _format as form
from ._protobuf import fields

try:
    import fcntl
except ImportError:  # not on Windows: there, nothing tells whether a writer lives
    fcntl = None  # type: ignore[assignment]

_SMALL = 2**18


class Draft:
    """The files of one capture that is not finished.

    Attributes:
        path: where the dump will be.
        data: the file with the bytes.
        journal: the file with the rows.
    """

    def __init__(self, path: Path, mark: str) -> None:
        self.path = path
        self.data = path.with_name(f".{path.name}.{mark}.data")
        self.journal = path.with_name(f".{path.name}.{mark}.journal")
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, heading: bytes) -> tuple[Self, int, int]:
        """New files and their descriptors (data, journal), locked as long as this process lives.

        Args:
            path: where the dump will be.
            heading: what the journal begins with.

        Raises:
            OSError: the folder refuses.
        """
        draft = cls(path, secrets.token_hex(4))
        handles: list[int] = []
        try:
            handles.append(data := _new(draft.data))
            handles.append(journal := _new(draft.journal))
            if fcntl is not None:
                with contextlib.suppress(OSError):  # a network's file system may have no locks
                    fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(journal, heading)
        except OSError:
            for handle in handles:
                os.close(handle)
            draft.remove()
            raise
        return draft, data, journal

    def open_direct(self) -> int | None:
        """The data file, open to write past the page cache; None where there is no such way."""
        try:
            return os.open(self.data, os.O_WRONLY | os.O_DIRECT)
        except (AttributeError, OSError):
            return None

    @classmethod
    def beside(cls, path: Path) -> list[Self]:
        """The drafts of captures to `path`, the latest first."""
        pattern = re.compile(re.escape(f".{path.name}.") + r"([0-9a-f]{8})\.journal")
        try:
            marks = [match[1] for file in path.parent.iterdir() if (match := pattern.fullmatch(file.name))]
        except (OSError, ValueError):
            return []
        found = [cls(path, mark) for mark in marks]
        return sorted(found, key=lambda draft: (_mtime(draft.journal), draft.journal.name), reverse=True)

    def to(self, path: Path) -> Self:
        """The same files for a dump of another name."""
        other = type(self)(path, "")
        other.data, other.journal = self.data, self.journal
        return other

    def take(self) -> bool:
        """Take over the files of a process that is gone; False if it lives, or if they are gone themselves."""
        try:
            self._lock = os.open(self.journal, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        """Let the files go that were taken over."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def place_data(self) -> Path:
        """Give the data a name beside the dump that nobody else has: not the former dump's, which lasts until the end.

        Raises:
            OSError: the folder refuses.
        """
        count = 0
        while True:
            data = self.path.with_name(f"{self.path.name}.{count}.data" if count else f"{self.path.name}.data")
            count += 1
            try:
                os.link(self.data, data)
            except FileExistsError:
                if not self._is_ours(data):
                    continue
            except OSError:
                if data.exists() or not self.data.exists():
                    raise
                self.data.rename(data)  # no second names here
            return data

    def check_own(self, data: int) -> None:
        """Refuse a data file, open as `data`, that is no regular file, or has a name in another folder.

        Raises:
            OSError: it is so.
        """
        found = os.fstat(data)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, f"{self.data.name!r} is no regular file")
        here = sum(1 for file in self.data.parent.iterdir() if not file.is_symlink() and _is_same(file, found))
        if found.st_nlink > here:
            raise OSError(errno.EPERM, f"{self.data.name!r} is a hard link: the file has another name elsewhere")

    def take_back(self, data: Path) -> None:
        """Undo `place_data`."""
        with contextlib.suppress(OSError):
            if self.data.exists():
                data.unlink(missing_ok=True)
            else:
                data.rename(self.data)

    def _is_ours(self, data: Path) -> bool:
        """Whether a kill came right after the data was given this name, last time."""
        try:
            return not data.is_symlink() and data.samefile(self.data)
        except OSError:  # it was another dump's, and is gone by now
            return False

    def publish(self, model: bytes, data: Path | None) -> None:
        """Put the model in its place, and remove what the former dump there leaves behind.

        Raises:
            OSError: the folder or the disk refuses; the former dump is still there then.
        """
        temporary = self.journal.with_suffix(".model")
        try:
            temporary.unlink(missing_ok=True)  # it may be a link, which would be written through
            with os.fdopen(_new(temporary), "wb") as file:
                file.write(model)
            with _alone_in(self.path.parent):
                stale = _data_of(self.path)
                temporary.replace(self.path)
                if stale is not None and stale != data:
                    with contextlib.suppress(OSError):  # dead weight, no more
                        stale.unlink(missing_ok=True)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the drafts."""
        for file in (self.data, self.journal, self.journal.with_suffix(".model")):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


def unfinished(path: Path) -> str | None:
    """What to do about a capture to `path` that was cut short or still runs; None if there is none."""
    for draft in Draft.beside(path):
        if not draft.take():
            return f"a capture to it still runs, and the dump is there when it ends (see {draft.journal.name!r})"
        draft.leave()
        return f"a capture to it was cut short: `filch recover {path}` makes a dump of what is left"
    return None


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """While two processes put dumps in one place, one after the other removes what the other one replaced."""
    handle: int | None = None
    try:
        with contextlib.suppress(OSError):
            if fcntl is not None:
                handle = os.open(folder, os.O_RDONLY)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _data_of(path: Path) -> Path | None:
    """The data file of the dump that stands at `path`: without it, that file is dead weight."""
    ours = re.compile(re.escape(path.name) + r"(\.\d+)?\.data")
    try:
        contents = read_untrusted(path, form.LARGEST)
        parts = [(number, start, stop) for number, _, start, stop in fields(contents, 0, len(contents))]
        entries = [
            StringStringEntryProto.FromString(contents[a:b]) for number, a, b in parts if number == form.METADATA
        ]
        if not any(entry.key == form.VERSION_KEY for entry in entries):
            return None
        # Whoever made that file: the parser sees one small node at a time (see `_wire`).
        nodes = (
            NodeProto.FromString(contents[start:stop])
            for number, *graph in parts
            if number == form.GRAPH
            for kind, _, start, stop in fields(contents, *graph)
            if kind == form.NODE and stop - start <= _SMALL
        )
        places = (entry for node in nodes for item in node.attribute for entry in item.t.external_data)
        names = (entry.value for entry in places if entry.key == "location")
        return next((path.with_name(name) for name in names if ours.fullmatch(name)), None)
    except (OSError, DecodeError, ValueError):
        return None


def _new(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def _is_same(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), found)
    except OSError:
        return False


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
