"""Draw the graph before all passes and after each."""

import os
from collections.abc import Sequence

from ..graph._graph import Graph
from ..program._program import Program
from ..views import Series
from ._instrument import Instrument
from ._origins import with_origins


class SaveGraphInstrument(Instrument):
    """See `PassContext.save_graph_instrument`.

    The source graph of each drawn graph is the one before the pass, so that views can show both.
    """

    def __init__(self, out_dir: str | os.PathLike[str], *, views: str | Sequence[str] = ("hidet", "text")) -> None:
        self._series = Series(out_dir, views)
        self._graph: Graph | None = None

    def before_all_passes(self, program: Program) -> None:
        """Remove the files of an earlier run, and draw the original graph."""
        self._series.begin()
        self._graph = None
        self._draw("Origin", program)

    def after_pass(self, name: str, program: Program) -> None:
        """Draw the graph after a pass."""
        self._draw(name, program)

    def _draw(self, name: str, program: Program) -> None:
        graph = program.graph
        self._series.draw(name, graph if self._graph is None else with_origins(graph, self._graph))
        self._graph = graph
