"""Draw a series of graphs, such as the stages of a compiler, to numbered files in a folder."""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from filch.steal import write_output
from filch.steal.text import short_line

from .._errors import ViewError
from ..graph._graph import Graph
from ._registry import draw, get_view, write

_log = logging.getLogger("filch")
_LIST = ".filch-drawn"  # lists the files that a run has drawn, so that the next run can remove them
_NUMBERED = re.compile(r"\d+_[\w.-]+", re.ASCII)
_LONGEST = 100  # characters of a file name


class Series:
    """Numbered files of a folder: `0_Origin.json`, `0_Origin.txt`, `1_FoldConstantPass.json` and so on.

    Args:
        folder: created if it is missing. Other files in it stay.
        views: names of views, optionally followed by a suffix (`"netron.netron"`); the default is the first one.

    Raises:
        ViewError: there is no such view, it does not write such files, or two views write the same suffix.
    """

    def __init__(self, folder: str | os.PathLike[str], views: str | Sequence[str] = ("hidet", "text")) -> None:
        self._folder = Path(folder)
        self._views = _with_suffixes([views] if isinstance(views, str) else views)
        self._notes: set[str] = set()
        self._count = 0

    def begin(self) -> None:
        """Restart at 0, and remove the files of an earlier series from the folder.

        Raises:
            ViewError: a file can't be written or removed.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._listed_files():
                path.unlink(missing_ok=True)
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
            ViewError: a view can't draw it, or a file can't be written.
        """
        for view, suffix in self._views.items():
            drawing = draw(graph, view, suffix)
            path = write(drawing, self._folder / f"{self._count}_{_file_name(name)}{suffix}")
            with self._list_file.open("a", encoding="utf-8") as list_file:
                list_file.write(f"{path.name}\n")
            if drawing.note and drawing.note not in self._notes:
                self._notes.add(drawing.note)
                _log.warning("%s", short_line(drawing.note))
        self._count += 1

    @property
    def _list_file(self) -> Path:
        return self._folder / _LIST

    def _listed_files(self) -> list[Path]:
        """Return the listed files. Names that would lead out of the folder are ignored."""
        names = self._list_file.read_text("utf-8", "replace").split("\n") if self._list_file.is_file() else []
        return [self._folder / name for name in names if _NUMBERED.fullmatch(name)]


def _with_suffixes(views: Iterable[str]) -> dict[str, str]:
    """Map the name of each view to the suffix that it writes, or raise an error if two are the same."""
    suffixes: dict[str, str] = {}
    for given in views:
        name, dot, rest = given.partition(".")
        suffix = dot + rest or get_view(name).suffixes[0]
        get_view(name, suffix)  # checks the suffix
        if other := next((view for view, taken in suffixes.items() if taken == suffix), None):
            raise ViewError(f"views {other!r} and {name!r} both write {suffix}, and one would overwrite the other's")
        suffixes[name] = suffix
    return suffixes


def _file_name(name: str) -> str:
    """Convert a name to a file name of letters, digits, dashes and underscores."""
    return re.sub(r"[^\w-]+", "_", name, flags=re.ASCII).strip("_")[:_LONGEST] or "pass"
