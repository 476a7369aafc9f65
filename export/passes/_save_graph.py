"""Draw the graph before all passes and after each."""

import os
from collections.abc import Sequence
from dataclasses import replace

from ..graph._graph import Graph
from ..graph._nodes import Node
from ..program._program import Program
from ..views._series import Series
from ._instrument import Instrument


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
        self._series.draw(name, graph if self._graph is None else _with_origins(graph, self._graph))
        self._graph = graph


def _with_origins(graph: Graph, before: Graph) -> Graph:
    """Return the graph with `before` as its source graph, and with the origins of its nodes.

    Passes keep the names of the values that they keep. So the origins of a node are the nodes of `before` between its
    outputs and the nearest values that exist in both graphs. A node with new outputs is matched by its own name.
    """
    stops = (graph.known & before.known) | before.constant_values

    def origins(node: Node) -> tuple[str, ...]:
        if kept := [name for name in node.outputs if name in before.producer]:
            return tuple(item.name for item in before.cone(kept, stops))
        return (node.name,) if node.name in before.node_indices else ()

    nodes = tuple(replace(node, origins=origins(node)) for node in graph.nodes)
    return replace(graph, nodes=nodes, source_graph=before)
