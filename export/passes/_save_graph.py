"""Draws the graph before all passes and after each."""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from .._errors import PassError, ViewError
from .._graph import Graph
from .._program import Program
from ..views import get_view, save
from ._instrument import Instrument
from ._origins import with_origins

_log = logging.getLogger("filch")
_NOTED = ".filch-drawn"  # the names of the files that a run has drawn, for the next one, of whichever process
_NUMBERED = re.compile(r"\d+_[\w.-]+", re.ASCII)
_LONGEST = 100


class SaveGraphInstrument(Instrument):
    """See `PassContext.save_graph_instrument`.

    A graph is drawn with the one before the pass as its `before`, so that a view can show what became of that.
    """

    def __init__(self, out_dir: str | os.PathLike[str], *, views: Sequence[str] = ("hidet", "text")) -> None:
        self._folder = Path(out_dir)
        self._views = _with_suffixes([views] if isinstance(views, str) else views)
        self._told: set[str] = set()
        self._count = 0
        self._graph: Graph | None = None

    def before_all_passes(self, program: Program) -> None:
        """Remove what an earlier run has drawn, and draw the graph as it is."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._drawn_before():
                path.unlink(missing_ok=True)
            self._noted.write_text("", "utf-8")
        except OSError as error:
            raise PassError(f"can't draw into {str(self._folder)!r}: {error.strerror or error}") from error
        self._count, self._graph = 0, None
        self._draw("Origin", program)

    def after_pass(self, name: str, program: Program) -> None:
        """Draw the graph."""
        self._count += 1
        self._draw(name, program)

    @property
    def _noted(self) -> Path:
        return self._folder / _NOTED

    def _drawn_before(self) -> list[Path]:
        """The files that are noted; by their names they are in this folder, whatever stands in the file."""
        names = self._noted.read_text("utf-8", "replace").split("\n") if self._noted.is_file() else []
        return [self._folder / name for name in names if _NUMBERED.fullmatch(name)]

    def _draw(self, name: str, program: Program) -> None:
        graph = program.graph
        drawn = graph if self._graph is None else with_origins(graph, self._graph)
        self._graph = graph
        for view, suffix in self._views.items():
            path, note = save(drawn, view, self._folder / f"{self._count}_{_safe(name)}{suffix}")
            with self._noted.open("a", encoding="utf-8") as noted:
                noted.write(f"{path.name}\n")
            if note and note not in self._told:
                self._told.add(note)
                _log.warning(note)


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
