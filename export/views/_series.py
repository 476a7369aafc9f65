"""Draws one graph after the other into a folder, by number: what each stage of a compiler made of it."""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from filch.steal import write_output
from filch.steal.text import named

from .._errors import ViewError
from ..graph._graph import Graph
from ._registry import draw, get_view, write

_log = logging.getLogger("filch")
_NOTED = ".filch-drawn"  # the names of the files that a run has drawn, for the next one, of whichever process
_NUMBERED = re.compile(r"\d+_[\w.-]+", re.ASCII)
_LONGEST = 100


class Series:
    """Numbered files of a folder: `0_Origin.json`, `0_Origin.txt`, `1_FoldConstantPass.json` and so on.

    Args:
        folder: made if it is not there. Files of others in it stay.
        views: names of views, each with a suffix behind it if another than its first is wanted (`"netron.netron"`).

    Raises:
        ViewError: there is no such view, it does not write such files, or two views write the same.
    """

    def __init__(self, folder: str | os.PathLike[str], views: str | Sequence[str] = ("hidet", "text")) -> None:
        self._folder = Path(folder)
        self._views = _with_suffixes([views] if isinstance(views, str) else views)
        self._told: set[str] = set()
        self._count = 0

    def begin(self) -> None:
        """Begin at 0, without the files that an earlier series has left in the folder.

        Raises:
            ViewError: the disk refuses.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._drawn_before():
                path.unlink(missing_ok=True)
            write_output(self._noted, "")
        except OSError as error:
            raise ViewError(f"can't draw into {str(self._folder)!r}: {error.strerror or error}") from error
        self._count = 0

    def draw(self, name: str, graph: Graph) -> None:
        """Draw the next graph in all views.

        Args:
            name: what stands behind the number.
            graph: any.

        Raises:
            ViewError: a view can't draw it, or the disk refuses.
        """
        for view, suffix in self._views.items():
            drawing = draw(graph, view, suffix)
            path = write(drawing, self._folder / f"{self._count}_{_safe(name)}{suffix}")
            with self._noted.open("a", encoding="utf-8") as noted:
                noted.write(f"{path.name}\n")
            if drawing.note and drawing.note not in self._told:
                self._told.add(drawing.note)
                _log.warning("%s", named(drawing.note))
        self._count += 1

    @property
    def _noted(self) -> Path:
        return self._folder / _NOTED

    def _drawn_before(self) -> list[Path]:
        """The files that are noted; by their names they are in this folder, whatever stands in the file."""
        names = self._noted.read_text("utf-8", "replace").split("\n") if self._noted.is_file() else []
        return [self._folder / name for name in names if _NUMBERED.fullmatch(name)]


def _with_suffixes(views: Iterable[str]) -> dict[str, str]:
    """The suffix that each view writes; no two can write the same."""
    found: dict[str, str] = {}
    for given in views:
        name, dot, wanted = given.partition(".")
        known = get_view(name).suffixes
        suffix = dot + wanted or known[0]
        if suffix not in known:
            raise ViewError(f"view {name!r} writes {' and '.join(known)}, not {suffix}")
        if other := next((view for view, taken in found.items() if taken == suffix), None):
            raise ViewError(f"views {other!r} and {name!r} both write {suffix}, and one would overwrite the other's")
        found[name] = suffix
    return found


def _safe(name: str) -> str:
    """A name of letters, digits, dashes and underscores for a file."""
    return re.sub(r"[^\w-]+", "_", name, flags=re.ASCII).strip("_")[:_LONGEST] or "pass"
