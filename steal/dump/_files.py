"""The files of a dump, and the draft files of an unfinished one.

During a capture, the data is written to `.NAME.<random>.data` and its index to `.NAME.<random>.journal`, beside the
future dump. At the end the data file is hard-linked to `NAME.data` (or `NAME.1.data` and so on, if that exists), and
the model is written to a temporary file and renamed. So an existing dump is always complete, and a previous dump stays
until it is replaced. The drafts are removed last: whenever the process is killed, either the dump or its drafts exist.
"""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from google.protobuf.message import DecodeError
from onnx import NodeProto

from .._errors import DumpError
from ..files._kinds import budget_of
from ..files._untrusted import read_untrusted
from . import _format as form
from ._protobuf import fields, graph_and_metadata

try:
    import fcntl
except ImportError:  # Windows: there, locks are not checked
    fcntl = None  # type: ignore[assignment]


class Draft:
    """The draft files of one unfinished capture.

    Attributes:
        path: the path of the future dump.
        data: the data file.
        journal: the journal file.
    """

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self.data = path.with_name(f".{path.name}.{token}.data")
        self.journal = path.with_name(f".{path.name}.{token}.journal")
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, header: bytes) -> tuple[Self, int, int]:
        """Create the draft files, locked while this process lives; return the draft and the descriptors of both.

        Args:
            path: the path of the future dump.
            header: the first line of the journal.

        Raises:
            OSError: the files can't be created.
        """
        draft = cls(path, secrets.token_hex(4))
        descriptors: list[int] = []
        try:
            descriptors.append(data := _create(draft.data))
            descriptors.append(journal := _create(draft.journal))
            if fcntl is not None:
                with contextlib.suppress(OSError):  # network file systems may not support locks
                    fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(journal, header)
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            draft.remove()
            raise
        return draft, data, journal

    def open_direct(self) -> int | None:
        """Return a descriptor of the data file that bypasses the page cache; None where that is not supported."""
        try:
            return os.open(self.data, os.O_WRONLY | os.O_DIRECT)
        except (AttributeError, OSError):
            return None

    @classmethod
    def find_all(cls, path: Path) -> list[Self]:
        """Return the drafts of captures to `path`, the latest first."""
        pattern = re.compile(re.escape(f".{path.name}.") + r"([0-9a-f]{8})\.journal")
        try:
            tokens = [match[1] for file in path.parent.iterdir() if (match := pattern.fullmatch(file.name))]
        except (OSError, ValueError):  # there is no such folder; a null character
            return []
        drafts = [cls(path, token) for token in tokens]
        return sorted(drafts, key=lambda draft: (_mtime(draft.journal), draft.journal.name), reverse=True)

    def lock(self) -> bool:
        """Lock the draft of a process that has ended; return False if it still runs, or if the draft is gone."""
        try:
            self._lock = os.open(self.journal, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.unlock()
            return False
        return True

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def place_data(self) -> Path:
        """Give the data file an unused final name beside the dump; the previous dump's stays until the end.

        Raises:
            OSError: the file can't be linked.
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
                if data.exists() or not self.data.exists():  # renaming would replace a file, or has none to rename
                    raise
                self.data.rename(data)  # a file system without hard links
            return data

    def check_data_file(self, descriptor: int) -> None:
        """Refuse an open data file that has a hard link in another folder: `recover` truncates the file.

        Raises:
            OSError: the file must not be used.
        """
        status = os.fstat(descriptor)
        links = sum(1 for file in self.data.parent.iterdir() if not file.is_symlink() and _is_same(file, status))
        if status.st_nlink > links:
            raise OSError(errno.EPERM, f"{self.data.name!r} is a hard link: the file has another name elsewhere")

    def undo_place_data(self, data: Path) -> None:
        """Undo `place_data`."""
        with contextlib.suppress(OSError):
            if self.data.exists():  # it was linked; else it was renamed
                data.unlink(missing_ok=True)
            else:
                data.rename(self.data)

    def _is_ours(self, data: Path) -> bool:
        """Return whether `data` is this draft's data, linked before a previous attempt was killed."""
        try:
            return not data.is_symlink() and data.samefile(self.data)
        except OSError:  # another process has removed it since
            return False

    def publish(self, model: list[bytes], data: Path | None) -> None:
        """Replace the dump at the path by a new one in one step, and remove the data file of the previous dump.

        Args:
            model: the contents of the ONNX file, in parts.
            data: the data file that the model refers to; None if the model contains the data.

        Raises:
            OSError: the model can't be written; the previous dump still exists then.
        """
        temporary = self.journal.with_suffix(".model")
        try:
            temporary.unlink(missing_ok=True)  # it may be a link, which must not be followed
            with os.fdopen(_create(temporary), "wb") as file:
                file.writelines(model)
            with _locked(self.path.parent):
                stale = _data_file_of(self.path)
                temporary.replace(self.path)
                if stale is not None and stale != data:
                    with contextlib.suppress(OSError):  # an unused file does no harm
                        stale.unlink(missing_ok=True)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the draft files."""
        for file in (self.data, self.journal, self.journal.with_suffix(".model")):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


def unfinished_hint(path: Path) -> str | None:
    """Return a hint about an unfinished capture to `path`; None if there is none."""
    for draft in Draft.find_all(path):
        if not draft.lock():
            return f"a capture to it still runs, and writes the dump when it ends (see {draft.journal.name!r})"
        draft.unlock()
        return f"a capture to it was interrupted: `filch recover {path}` makes a dump of what was recorded"
    return None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder: two processes that publish one dump do so in turn, and each removes the data of the one before."""
    descriptor: int | None = None
    try:
        with contextlib.suppress(OSError):  # as in `Draft.create`
            if fcntl is not None:
                descriptor = os.open(folder, os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _data_file_of(path: Path) -> Path | None:
    """Return the data file of the dump at `path`, which is unused once the dump is replaced."""
    data_name = re.compile(re.escape(path.name) + r"(\.\d+)?\.data")
    try:
        contents = read_untrusted(path, budget_of("dump"))
        graph, props = graph_and_metadata(path, contents)
        if form.VERSION_KEY not in props:
            return None
        # The file is untrusted: parse one small node at a time (see `_protobuf`).
        nodes = (
            NodeProto.FromString(contents[start:stop])
            for number, _, start, stop in fields(contents, *graph)
            if number == form.NODE and stop - start <= form.MAX_NODE_SIZE
        )
        external = (entry for node in nodes for item in node.attribute for entry in item.t.external_data)
        names = (entry.value for entry in external if entry.key == "location")
        return next((path.with_name(name) for name in names if data_name.fullmatch(name)), None)
    except (OSError, DecodeError, DumpError, ValueError):
        return None


def _create(file: Path) -> int:
    """Create a file, and return its descriptor; never open an existing file or follow a link."""
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def _is_same(path: Path, status: os.stat_result) -> bool:
    """Return whether `status` is that of the file at `path`."""
    try:
        return os.path.samestat(path.lstat(), status)
    except OSError:
        return False


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
