"""Draw a series of graphs, such as the stages of a compiler, to numbered files in a folder."""

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from filch.steal import writing
from filch.steal.files._kinds import budget_of
from filch.steal.files._outputs import write_output
from filch.steal.files._untrusted import open_untrusted, read_untrusted
from filch.steal.text._visible import short_line

from .._errors import ViewError
from ..graph._graph import Graph
from ._registry import draw, get_view, write
from ._view import Drawing

_log = logging.getLogger("filch")
_LIST = ".filch-drawn"  # lists the files that a run has drawn and their hashes, so that the next run can remove them
_NUMBERED = re.compile(r"\d+_[\w.-]+", re.ASCII)
_LONGEST = 100  # characters of a file name


class Series:
    """Numbered files of a folder: `0_Origin.json`, `0_Origin.txt`, `1_FoldConstantPass.json` and so on.

    Args:
        folder: created if it is missing. Other files in it stay, also drawn ones that were changed since.
        views: names of views, optionally followed by a suffix (`"netron.netron"`); the default is the first one.

    Raises:
        ViewError: there is no such view, it does not write such files, or two views write the same suffix.
    """

    def __init__(self, folder: str | os.PathLike[str], views: str | Sequence[str] = ("hidet", "text")) -> None:
        self._folder = Path(folder)
        self._views = _by_suffix([views] if isinstance(views, str) else views)
        self._notes: set[str] = set()  # that were logged, each once
        self._count = 0
        self._is_new = False  # whether `begin` has created the folder

    def begin(self) -> None:
        """Restart at 0, and remove the files of an earlier series from the folder.

        Raises:
            ViewError: a file can't be written or removed.
        """
        try:
            self._is_new = not self._folder.exists()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_drawn()
            write_output(self._list_file, "")
        except OSError as error:
            raise ViewError(f"can't draw into {str(self._folder)!r}: {error.strerror or error}") from error
        self._count = 0

    def draw(self, name: str, graph: Graph) -> None:
        """Draw the next graph in all views.

        Args:
            name: the name after the number.
            graph: the graph.

        Raises:
            ViewError: a view can't draw it, a file can't be written, or there is one that Filch did not draw.
        """
        for suffix, view in self._views.items():
            drawing = draw(graph, view, suffix)
            path = self._folder / f"{self._count}_{_file_name(name)}{drawing.suffix}"
            try:
                self._write(drawing, path)
            except ViewError:
                self._remove()
                raise
            if drawing.note and drawing.note not in self._notes:
                self._notes.add(drawing.note)
                _log.warning("%s", short_line(drawing.note))
        self._count += 1

    def _write(self, drawing: Drawing, path: Path) -> None:
        """Write a drawing, after its entry in the list; refuse to replace a file."""
        if os.path.lexists(path):
            raise ViewError(f"{str(path)!r} exists, and Filch did not draw it: move it, or draw into another folder")
        with writing(path, ViewError), self._list_file.open("a", encoding="utf-8") as list_file:
            list_file.write(f"{path.name} {hashlib.sha256(drawing.content).hexdigest()}\n")
            write(drawing, path)

    def _remove(self) -> None:
        """Remove all that was drawn, with the folder if it was created for it."""
        with suppress(OSError):
            self._remove_drawn()
            self._list_file.unlink()
            if self._is_new:
                self._folder.rmdir()

    def _remove_drawn(self) -> None:
        for path in self._drawn_files():
            path.unlink()

    @property
    def _list_file(self) -> Path:
        return self._folder / _LIST

    def _drawn_files(self) -> list[Path]:
        """Return the listed files that are as they were drawn. Names that would lead out of the folder are ignored."""
        if not os.path.lexists(self._list_file):
            return []
        text = read_untrusted(self._list_file, budget_of("list of drawings"), follow=False).decode("utf-8", "replace")
        listed = (line.partition(" ") for line in text.split("\n"))
        found = {self._folder / name: digest for name, _, digest in listed if _NUMBERED.fullmatch(name)}
        return [path for path, digest in found.items() if path.is_file() and _hash(path) == digest]


def _by_suffix(views: Iterable[str]) -> dict[str, str]:
    """Return the name of the view that writes each suffix, or raise an error if two write the same."""
    by_suffix: dict[str, str] = {}
    for given in views:
        name, dot, rest = given.partition(".")
        suffix = dot + rest or get_view(name).suffixes[0]  # the given one, or the view's first
        get_view(name, suffix)  # checks the suffix
        if suffix in by_suffix:
            raise ViewError(
                f"views {by_suffix[suffix]!r} and {name!r} both write {suffix}, and one would overwrite the other's"
            )
        by_suffix[suffix] = name
    return by_suffix


def _hash(path: Path) -> str:
    with open_untrusted(path) as file:
        return hashlib.sha256(file.read()).hexdigest()


def _file_name(name: str) -> str:
    """Convert a name to a file name of letters, digits, dashes and underscores."""
    return re.sub(r"[^\w-]+", "_", name, flags=re.ASCII).strip("_")[:_LONGEST] or "pass"
